#include "model/tokenizer/detokenizer.h"

#include <gtest/gtest.h>

#include <random>

#include "base/utf8.h"
#include "tests/support/environment.h"

namespace penstock {
namespace {

std::unique_ptr<const Tokenizer> LoadGolden(const std::string& kind) {
  auto tokenizer = Tokenizer::Load(SourceFolder() + "/tests/golden/tokenizer/" + kind);
  EXPECT_TRUE(tokenizer.ok()) << tokenizer.status();
  return *std::move(tokenizer);
}

std::vector<uint32_t> Encode(const Tokenizer& tokenizer, const std::string& text) {
  return *tokenizer.Encode(text, {.add_special_tokens = false});
}

TEST(Detokenizer, WaitsForTheEndOfACodePoint) {
  const auto tokenizer = LoadGolden("gpt2");
  const std::vector<uint32_t> ids = Encode(*tokenizer, "\xF0\x9F\xA7\xBF");  // four byte tokens
  ASSERT_GE(ids.size(), 2u);
  Detokenizer detokenizer(*tokenizer);
  for (size_t i = 0; i + 1 < ids.size(); ++i) EXPECT_EQ(detokenizer.Feed(ids[i]), "");
  EXPECT_EQ(detokenizer.Feed(ids.back()), "\xF0\x9F\xA7\xBF");
  EXPECT_EQ(detokenizer.Flush(), "");
}

TEST(Detokenizer, FlushReplacesAnUnfinishedCodePoint) {
  const auto tokenizer = LoadGolden("gpt2");
  const std::vector<uint32_t> ids = Encode(*tokenizer, "\xF0\x9F\xA7\xBF");
  Detokenizer detokenizer(*tokenizer);
  EXPECT_EQ(detokenizer.Feed(ids[0]), "");
  EXPECT_EQ(detokenizer.Flush(), kReplacementCharacter);
  EXPECT_EQ(detokenizer.Flush(), "");
}

TEST(Detokenizer, BytesThatNeverBecomeTextAreReplaced) {
  const auto tokenizer = LoadGolden("llama2");
  const uint32_t lead = *tokenizer->FindToken("<0xE2>");
  Detokenizer detokenizer(*tokenizer);
  EXPECT_EQ(detokenizer.Feed(lead), "");
  EXPECT_EQ(detokenizer.Feed(*tokenizer->FindToken("a")), std::string(kReplacementCharacter) + "a");
}

// Any token of a space and letters.
uint32_t FindSpaced(const Tokenizer& tokenizer) {
  uint32_t id = 0;
  const auto is_spaced = [&](std::string_view bytes) {
    return bytes.size() > 1 && bytes[0] == ' ' && bytes[1] >= 'a' && bytes[1] <= 'z';
  };
  while (id < tokenizer.vocab_size() && !is_spaced(tokenizer.TokenBytes(id))) ++id;
  EXPECT_LT(id, tokenizer.vocab_size());
  return id;
}

TEST(Detokenizer, DropsTheFirstSpaceOfASentencePieceTextOnly) {
  for (const char* kind : {"llama2", "mistral", "metaspace_unk"}) {
    const auto tokenizer = LoadGolden(kind);
    const uint32_t id = FindSpaced(*tokenizer);
    const std::string spaced(tokenizer->TokenBytes(id));
    Detokenizer fresh(*tokenizer);
    EXPECT_EQ(fresh.Feed(id), spaced.substr(1)) << kind;
    EXPECT_EQ(fresh.Feed(id), spaced) << kind;
    Detokenizer continued(*tokenizer, {.continues_text = true});
    EXPECT_EQ(continued.Feed(id), spaced) << kind;
  }
}

TEST(Detokenizer, SkipsSpecialTokensWhereAsked) {
  const auto tokenizer = LoadGolden("llama2");
  const uint32_t bos = *tokenizer->bos_id();
  const uint32_t the = *tokenizer->FindToken("\xE2\x96\x81the");
  Detokenizer skips(*tokenizer);
  EXPECT_EQ(skips.Feed(bos), "");
  EXPECT_EQ(skips.Feed(the), "the");
  Detokenizer shows(*tokenizer, {.skip_special_tokens = false});
  EXPECT_EQ(shows.Feed(bos), "<s>");
  EXPECT_EQ(shows.Feed(the), " the");
}

TEST(Detokenizer, UnknownIdsGiveNothing) {
  const auto tokenizer = LoadGolden("gpt2");
  Detokenizer detokenizer(*tokenizer);
  EXPECT_EQ(detokenizer.Feed(1u << 30), "");
}

TEST(Detokenizer, AnyIdsGiveValidTextAndTheSameAsDecode) {
  std::mt19937 rng(3);
  for (const char* kind : {"gpt2", "llama2", "metaspace_unk", "gemma"}) {
    const auto tokenizer = LoadGolden(kind);
    for (int round = 0; round < 500; ++round) {
      std::vector<uint32_t> ids(rng() % 20);
      for (uint32_t& id : ids) id = static_cast<uint32_t>(rng()) % (tokenizer->vocab_size() + 2);
      Detokenizer detokenizer(*tokenizer);
      std::string text;
      for (uint32_t id : ids) {
        const std::string piece = detokenizer.Feed(id);
        ASSERT_EQ(FirstInvalidUtf8(piece), std::string_view::npos);
        text += piece;
      }
      text += detokenizer.Flush();
      ASSERT_EQ(text, tokenizer->Decode(ids, true));
    }
  }
}

}  // namespace
}  // namespace penstock
