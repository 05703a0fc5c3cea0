// Token ids and decoded texts as the reference implementation gives them (make_tokenizer.py).
#include <gtest/gtest.h>

#include <fstream>
#include <nlohmann/json.hpp>

#include "base/utf8.h"
#include "model/tokenizer/detokenizer.h"
#include "model/tokenizer/tokenizer.h"
#include "tests/support/environment.h"

namespace penstock {
namespace {

std::string GoldenDir() { return SourceFolder() + "/tests/golden/tokenizer"; }

nlohmann::json ReadJson(const std::string& path) {
  std::ifstream file(path);
  EXPECT_TRUE(file.good()) << path;
  return nlohmann::json::parse(file);
}

class TokenizerGolden : public testing::TestWithParam<const char*> {
 protected:
  void SetUp() override {
    const std::string directory = GoldenDir() + "/" + GetParam();
    absl::StatusOr<std::unique_ptr<const Tokenizer>> loaded = Tokenizer::Load(directory);
    ASSERT_TRUE(loaded.ok()) << loaded.status();
    tokenizer_ = *std::move(loaded);
    texts_ = ReadJson(GoldenDir() + "/texts.json").get<std::vector<std::string>>();
    cases_ = ReadJson(directory + "/cases.json");
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

INSTANTIATE_TEST_SUITE_P(Kinds, TokenizerGolden,
                         testing::Values("gpt2", "llama3", "qwen", "o200k", "deepseek", "starcoder",
                                         "flags", "llama2", "mistral", "gemma", "metaspace_unk",
                                         "no_unk"),
                         [](const auto& kind) { return std::string(kind.param); });

}  // namespace
}  // namespace penstock
