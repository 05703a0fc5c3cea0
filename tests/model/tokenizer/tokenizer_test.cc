#include "model/tokenizer/tokenizer.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fstream>
#include <nlohmann/json.hpp>
#include <thread>

#include "base/utf8.h"
#include "model/tokenizer/tokenizer_normalizer.h"
#include "tests/support/environment.h"

namespace penstock {
namespace {

using nlohmann::json;
using testing::HasSubstr;

std::unique_ptr<const Tokenizer> LoadGolden(const std::string& kind) {
  auto tokenizer = Tokenizer::Load(SourceFolder() + "/tests/golden/tokenizer/" + kind);
  EXPECT_TRUE(tokenizer.ok()) << tokenizer.status();
  return *std::move(tokenizer);
}

json GoldenFile(const std::string& kind) {
  std::ifstream file(SourceFolder() + "/tests/golden/tokenizer/" + kind + "/tokenizer.json");
  return json::parse(file);
}

// A file with one field changed, and the error it gives.
std::string ErrorOf(const std::string& kind, const std::string& pointer, const json& value) {
  json file = GoldenFile(kind);
  file[json::json_pointer(pointer)] = value;
  const auto tokenizer = Tokenizer::Parse(file.dump(), "");
  return tokenizer.ok() ? "no error" : Message(tokenizer.status());
}

TEST(Tokenizer, NamesTheFieldThatItDoesNotSupport) {
  EXPECT_THAT(ErrorOf("gpt2", "/model/type", "WordPiece"),
              HasSubstr("model.type is \"WordPiece\", which is not supported; supported: BPE"));
  EXPECT_THAT(ErrorOf("gpt2", "/model/dropout", 0.1), HasSubstr("model.dropout"));
  EXPECT_THAT(ErrorOf("gpt2", "/model/end_of_word_suffix", "</w>"),
              HasSubstr("model.end_of_word_suffix"));
  EXPECT_THAT(ErrorOf("gpt2", "/normalizer", {{"type", "Lowercase"}}),
              HasSubstr("normalizer.type is \"Lowercase\""));
  EXPECT_THAT(ErrorOf("llama3", "/pre_tokenizer/pretokenizers/0/type", "BertPreTokenizer"),
              HasSubstr("pre_tokenizer.pretokenizers[0].type is \"BertPreTokenizer\""));
  EXPECT_THAT(ErrorOf("llama3", "/pre_tokenizer/pretokenizers/0/pattern/Regex", "(a"),
              HasSubstr("pre_tokenizer.pretokenizers[0].pattern"));
  EXPECT_THAT(ErrorOf("gpt2", "/decoder", nullptr), HasSubstr("decoder is null"));
  EXPECT_THAT(ErrorOf("llama2", "/decoder/decoders/3/stop", 1), HasSubstr("decoders[3].stop is 1"));
  EXPECT_THAT(ErrorOf("llama3", "/post_processor/type", "BertProcessing"),
              HasSubstr("post_processor.type"));
}

TEST(Tokenizer, OnlySplitsFollowByteLevel) {
  EXPECT_THAT(
      ErrorOf("falcon", "/pre_tokenizer/pretokenizers/3/type", "ByteLevel"),
      HasSubstr("pretokenizers[3].type is \"ByteLevel\", which is not supported; supported: "
                "Digits, Punctuation, Split behind ByteLevel"));
  EXPECT_THAT(ErrorOf("falcon", "/pre_tokenizer/pretokenizers/2/type", "Metaspace"),
              HasSubstr("pretokenizers[2].type is \"Metaspace\""));
  EXPECT_THAT(ErrorOf("falcon", "/pre_tokenizer/pretokenizers/0/behavior", "Joined"),
              HasSubstr("pretokenizers[0].behavior is \"Joined\""));
}

TEST(Tokenizer, RefusesWhatContradictsItself) {
  EXPECT_THAT(ErrorOf("gpt2", "/model/merges", {"a nosuchtoken"}),
              HasSubstr("model.merges[0] joins a and nosuchtoken"));
  EXPECT_THAT(ErrorOf("gpt2", "/model/merges", {"a b c"}), HasSubstr("model.merges[0]"));
  EXPECT_THAT(ErrorOf("gpt2", "/model/unk_token", "nosuch"), HasSubstr("model.unk_token"));
  EXPECT_THAT(ErrorOf("gpt2", "/model/vocab/zzz", 0), HasSubstr("id 0 twice"));
  EXPECT_THAT(ErrorOf("gpt2", "/model/vocab/zzz", 4000000000u),
              HasSubstr("model.vocab.zzz is 4000000000, expected a whole number of 0 to"));
  EXPECT_THAT(ErrorOf("gpt2", "/added_tokens/0/id", -1), HasSubstr("added_tokens[0].id is -1"));
  EXPECT_THAT(ErrorOf("llama2", "/added_tokens/1/id", 7), HasSubstr("but model.vocab has 1"));
  EXPECT_THAT(ErrorOf("llama2", "/post_processor/special_tokens/<s>/ids", {999999}),
              HasSubstr("post_processor adds id 999999"));
  EXPECT_THAT(Message(Tokenizer::Parse("{\"model\":", "").status()), HasSubstr("is not JSON"));
  EXPECT_THAT(Message(Tokenizer::Parse("[]", "").status()), HasSubstr("tokenizer.json"));
  EXPECT_THAT(
      Message(Tokenizer::Parse(GoldenFile("gpt2").dump(), "{\"eos_token\":\"no\"}").status()),
      HasSubstr("eos_token is no, which is not a token"));
  EXPECT_EQ(Tokenizer::Load("/nonexistent").status().code(), absl::StatusCode::kNotFound);
}

TEST(Tokenizer, NamesTheByteThatIsNotUtf8) {
  const auto tokenizer = LoadGolden("gpt2");
  const auto ids = tokenizer->Encode("abc\xC3(");
  EXPECT_EQ(ids.status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(Message(ids.status()), HasSubstr("byte 3 of 5"));
  EXPECT_FALSE(tokenizer->Encode("\xED\xA0\x80").ok());  // a surrogate
  EXPECT_FALSE(tokenizer->Encode("\xC0\x80").ok());      // an overlong zero
  EXPECT_FALSE(tokenizer->Encode("abc\xE2\x82").ok());   // cut off
}

TEST(Tokenizer, KnowsItsSpecialTokens) {
  const auto llama3 = LoadGolden("llama3");
  EXPECT_EQ(llama3->bos_token(), "<|begin_of_text|>");
  EXPECT_EQ(llama3->bos_id(), llama3->FindToken("<|begin_of_text|>"));
  EXPECT_EQ(llama3->eos_token(), "<|eot_id|>");
  EXPECT_FALSE(llama3->pad_id().has_value());
  EXPECT_TRUE(llama3->is_special(*llama3->eos_id()));
  EXPECT_FALSE(llama3->is_special(*llama3->FindToken("a")));
  EXPECT_FALSE(llama3->is_special(1u << 30));
  EXPECT_EQ(llama3->vocab_size(), *llama3->eos_id() + 1);
  const auto qwen = LoadGolden("qwen");
  EXPECT_FALSE(qwen->bos_id().has_value());
  EXPECT_FALSE(qwen->is_special(*qwen->FindToken("<think>")));
}

TEST(Tokenizer, ControlTokensInTextAreTextUnlessAskedFor) {
  const auto tokenizer = LoadGolden("qwen");
  const std::string text = "<|im_start|>user";
  const auto plain = tokenizer->Encode(text);
  const auto parsed = tokenizer->Encode(text, {.parse_special_tokens = true});
  EXPECT_EQ(parsed->front(), *tokenizer->FindToken("<|im_start|>"));
  for (uint32_t id : *plain) EXPECT_FALSE(tokenizer->is_special(id));
  EXPECT_EQ(tokenizer->Decode(*plain, true), text);
}

TEST(Tokenizer, TokenBytesAreWhatTheTokenStandsFor) {
  const auto gpt2 = LoadGolden("gpt2");
  EXPECT_EQ(gpt2->TokenBytes(*gpt2->FindToken("\xC4\xA0t")), " t");  // "Ġt"
  const auto llama2 = LoadGolden("llama2");
  EXPECT_EQ(llama2->TokenBytes(*llama2->FindToken("<0xE2>")), "\xE2");
  EXPECT_EQ(llama2->TokenBytes(*llama2->FindToken("\xE2\x96\x81t")), " t");
  EXPECT_EQ(llama2->TokenBytes(1u << 30), "");
}

// Each of these would take minutes if anything on the way were quadratic: the test's time limit is
// the check.
TEST(Tokenizer, LongTextsOfAnyKindTakeLinearishTime) {
  const std::string marks = "\xCC\x81\xCC\xA3";  // an acute above, a dot below: out of order
  std::string late_marks = "a";
  for (int i = 0; i < 75'000; ++i) late_marks += "\xCC\x81";
  for (int i = 0; i < 75'000; ++i) late_marks += "\xCC\xA3";
  std::string many_marks;
  while (many_marks.size() < 300'000) many_marks += marks;
  std::string words;
  while (words.size() < 300'000) words += "the <|im_start|> water 123 ";
  std::vector<std::string> texts = {late_marks, many_marks, words};
  for (const char* unit : {"a", " ", "\n", "0", "!", "\xE6\xB0\xB4", "\xF0\x9F\x98\x80", "ab", "A",
                           "<", "\xE2\x96\x81", "'s", " \n", "\t "}) {
    std::string text;
    while (text.size() < 300'000) text += unit;
    texts.push_back(text + "x");
  }
  for (const char* kind : {"gpt2", "qwen", "o200k", "deepseek", "llama2", "gemma", "no_unk"}) {
    const auto tokenizer = LoadGolden(kind);
    for (const std::string& text : texts) {
      const auto ids = tokenizer->Encode(text, {.parse_special_tokens = true});
      ASSERT_TRUE(ids.ok()) << kind << ": " << ids.status();
      EXPECT_FALSE(ids->empty());
    }
  }
}

TEST(Tokenizer, ThreadsShareOne) {
  const auto tokenizer = LoadGolden("llama2");
  const std::string text = "The water of the river turns the wheel; Größe, 水車 😀.";
  const auto expected = LoadGolden("llama2")->Encode(text);
  std::vector<std::thread> threads;
  for (int i = 0; i < 4; ++i) {
    threads.emplace_back([&] {
      for (int round = 0; round < 200; ++round) EXPECT_EQ(*tokenizer->Encode(text), *expected);
    });
  }
  for (std::thread& thread : threads) thread.join();
}

TEST(Utf8, TellsInvalidFromIncomplete) {
  using Kind = Utf8Step::Kind;
  EXPECT_EQ(DecodeUtf8("\xE2\x82\xAC").code_point, 0x20ACu);
  EXPECT_EQ(DecodeUtf8("\xE2\x82").kind, Kind::kIncomplete);
  EXPECT_EQ(DecodeUtf8("\xE2(").kind, Kind::kInvalid);
  EXPECT_EQ(DecodeUtf8("\xF0\x9F\x98(").length, 3u);  // one U+FFFD for the whole part
  EXPECT_EQ(DecodeUtf8("\xF5").kind, Kind::kInvalid);
  EXPECT_EQ(DecodeUtf8("\x80").kind, Kind::kInvalid);
}

TEST(Normalizer, ComposesAndSortsMarks) {
  EXPECT_EQ(NormalizeUnicode("e\xCC\x81", {}), "\xC3\xA9");
  EXPECT_EQ(NormalizeUnicode("q\xCC\x87\xCC\xA3", {}), "q\xCC\xA3\xCC\x87");
  EXPECT_EQ(NormalizeUnicode("\xE1\x84\x92\xE1\x85\xA1\xE1\x86\xAB", {}), "\xED\x95\x9C");
  EXPECT_EQ(NormalizeUnicode("\xC3\xA9", {.composed = false}), "e\xCC\x81");
  EXPECT_EQ(NormalizeUnicode("\xEF\xAC\x81", {.compatible = true}), "fi");
}

}  // namespace
}  // namespace penstock
