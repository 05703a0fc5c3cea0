// Token ids and decoded texts as the reference implementation gives them (make_tokenizer.py).
#include <gtest/gtest.h>

#include <fstream>
#include <nlohmann/json.hpp>
#include <set>
#include <utility>

#include "base/utf8.h"
#include "model/tokenizer/detokenizer.h"
#include "model/tokenizer/tokenizer.h"
#include "tests/support/environment.h"

namespace penstock {
namespace {

std::string GoldenDir() { return SourceFolder() + "/tests/golden/"; }

nlohmann::json ReadJson(const std::string& path) {
  std::ifstream file(path);
  EXPECT_TRUE(file.good()) << path;
  return nlohmann::json::parse(file);
}

// A model and the file of what is expected of it, under tests/golden.
struct GoldenTokenizer {
  std::string name;
  std::string model;
  std::string cases;
};

class TokenizerGolden : public testing::TestWithParam<GoldenTokenizer> {
 protected:
  void SetUp() override {
    absl::StatusOr<std::unique_ptr<const Tokenizer>> loaded =
        Tokenizer::Load(GoldenDir() + GetParam().model);
    ASSERT_TRUE(loaded.ok()) << loaded.status();
    tokenizer_ = *std::move(loaded);
    texts_ = ReadJson(GoldenDir() + "tokenizer/texts.json").get<std::vector<std::string>>();
    cases_ = ReadJson(GoldenDir() + GetParam().cases);
    ASSERT_GE(texts_.size(), 50u);
    ASSERT_EQ(cases_.size(), texts_.size());
  }

  std::unique_ptr<const Tokenizer> tokenizer_;
  std::vector<std::string> texts_;
  nlohmann::json cases_;
};

TEST_P(TokenizerGolden, EncodesAsTheReference) {
  for (const nlohmann::json& expected : cases_) {
    const std::string& text = texts_[expected["text"].get<size_t>()];
    const auto ids = tokenizer_->Encode(text, {.parse_special_tokens = true});
    ASSERT_TRUE(ids.ok()) << ids.status();
    EXPECT_EQ(*ids, expected["ids"].get<std::vector<uint32_t>>()) << text;
  }
}

TEST_P(TokenizerGolden, EncodesPlainTextAsTheReference) {
  for (const nlohmann::json& expected : cases_) {
    const std::string& text = texts_[expected["text"].get<size_t>()];
    const auto ids = tokenizer_->Encode(text, {.add_special_tokens = false});
    ASSERT_TRUE(ids.ok()) << ids.status();
    const char* key = expected.contains("plain_ids") ? "plain_ids" : "ids";
    EXPECT_EQ(*ids, expected[key].get<std::vector<uint32_t>>()) << text;
  }
}

TEST_P(TokenizerGolden, DecodesAsTheReference) {
  for (const nlohmann::json& expected : cases_) {
    const std::string& text = texts_[expected["text"].get<size_t>()];
    const auto ids = expected["ids"].get<std::vector<uint32_t>>();
    const std::string decoded = expected.value("decoded", text);
    EXPECT_EQ(tokenizer_->Decode(ids, /*skip_special_tokens=*/true), decoded);
    EXPECT_EQ(tokenizer_->Decode(ids, /*skip_special_tokens=*/false),
              expected.value("decoded_all", decoded));
  }
}

TEST_P(TokenizerGolden, StreamsOnlyWholeCodePoints) {
  for (const nlohmann::json& expected : cases_) {
    Detokenizer detokenizer(*tokenizer_);
    std::string text;
    for (uint32_t id : expected["ids"].get<std::vector<uint32_t>>()) {
      const std::string piece = detokenizer.Feed(id);
      EXPECT_EQ(FirstInvalidUtf8(piece), std::string_view::npos);
      text += piece;
    }
    text += detokenizer.Flush();
    EXPECT_EQ(text, expected.value("decoded", texts_[expected["text"].get<size_t>()]));
  }
}

GoldenTokenizer Directory(const std::string& name) {
  return {name, "tokenizer/" + name, "tokenizer/" + name + "/cases.json"};
}
// A GGUF file that was converted from a directory, whose ids it must give
// (make_gguf_tokenizers.py).
GoldenTokenizer GgufOf(const std::string& name) {
  return {name, "gguf/" + name + ".gguf", "tokenizer/" + name + "/cases.json"};
}
// A GGUF file with cases of its own.
GoldenTokenizer Gguf(const std::string& name) {
  return {name, "gguf/" + name + ".gguf", "gguf/" + name + ".json"};
}

std::string NameOf(const testing::TestParamInfo<GoldenTokenizer>& tested) {
  return tested.param.name;
}

INSTANTIATE_TEST_SUITE_P(Kinds, TokenizerGolden,
                         testing::Values(Directory("gpt2"), Directory("llama3"), Directory("qwen"),
                                         Directory("o200k"), Directory("deepseek"),
                                         Directory("starcoder"), Directory("falcon"),
                                         Directory("flags"), Directory("llama2"),
                                         Directory("mistral"), Directory("gemma"),
                                         Directory("metaspace_unk"), Directory("no_unk")),
                         NameOf);
INSTANTIATE_TEST_SUITE_P(GgufKinds, TokenizerGolden,
                         testing::Values(GgufOf("gpt2"), GgufOf("llama3"), GgufOf("qwen"),
                                         GgufOf("deepseek"), GgufOf("o200k"), GgufOf("falcon"),
                                         Gguf("smollm"), Gguf("tekken"), Gguf("deepseek_coder"),
                                         Gguf("deepseek_llm"), Gguf("glm4"), Gguf("olmo"),
                                         Gguf("sentencepiece"), Gguf("sentencepiece_no_space")),
                         NameOf);

// Every code point, behind a space that is merged with any byte unless a split is between them.
TEST(TokenizerGolden, PunctuationIsThatOfTheReference) {
  nlohmann::json file = ReadJson(GoldenDir() + "tokenizer/falcon/tokenizer.json");
  file["pre_tokenizer"] = {
      {"type", "Sequence"},
      {"pretokenizers",
       {{{"type", "Punctuation"}},
        {{"type", "ByteLevel"}, {"add_prefix_space", false}, {"use_regex", false}}}}};
  nlohmann::json& merges = file["model"]["merges"];
  const nlohmann::json all = std::exchange(merges, nlohmann::json::array());
  for (const nlohmann::json& merge : all) {
    if (merge[0] == "\u0120") merges.push_back(merge);
  }
  const auto tokenizer = Tokenizer::Parse(file.dump(), "");
  ASSERT_TRUE(tokenizer.ok()) << tokenizer.status();
  const uint32_t space = *(*tokenizer)->FindToken("\u0120");
  std::set<char32_t> expected;
  for (const auto& range : ReadJson(GoldenDir() + "tokenizer/punctuation.json")) {
    for (char32_t c = range[0]; c <= range[1].get<char32_t>(); ++c) expected.insert(c);
  }
  for (char32_t c = 1; c < 0x110000; ++c) {
    if (c == 0xD800) c = 0xE000;
    std::string text = " ";
    AppendUtf8(c, text);
    const auto ids = (*tokenizer)->Encode(text);
    ASSERT_TRUE(ids.ok()) << ids.status();
    ASSERT_EQ(ids->front() == space, expected.contains(c)) << static_cast<uint32_t>(c);
  }
}

TEST(GgufTokenizerGolden, SpecialTokensAreThoseOfTheDirectory) {
  for (const char* name : {"llama3", "qwen", "deepseek"}) {
    const auto file = Tokenizer::Load(fmt::format("{}gguf/{}.gguf", GoldenDir(), name));
    const auto directory = Tokenizer::Load(fmt::format("{}tokenizer/{}", GoldenDir(), name));
    ASSERT_TRUE(file.ok()) << file.status();
    ASSERT_TRUE(directory.ok()) << directory.status();
    EXPECT_EQ((*file)->bos_id(), (*directory)->bos_id()) << name;
    EXPECT_EQ((*file)->eos_id(), (*directory)->eos_id()) << name;
    EXPECT_EQ((*file)->pad_id(), (*directory)->pad_id()) << name;
    EXPECT_EQ((*file)->vocab_size(), (*directory)->vocab_size()) << name;
    for (uint32_t id = 0; id < (*file)->vocab_size(); ++id) {
      EXPECT_EQ((*file)->is_special(id), (*directory)->is_special(id)) << name << " " << id;
      EXPECT_EQ((*file)->TokenBytes(id), (*directory)->TokenBytes(id)) << name << " " << id;
    }
  }
}

}  // namespace
}  // namespace penstock
