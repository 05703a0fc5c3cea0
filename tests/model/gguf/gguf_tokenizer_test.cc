#include "model/gguf/gguf_tokenizer.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <nlohmann/json.hpp>

#include "model/gguf/gguf_merges.h"
#include "tests/model/gguf/gguf_writer.h"

namespace penstock {
namespace {

using ::testing::HasSubstr;

absl::StatusOr<nlohmann::json> TextOf(const GgufWriter& writer, auto make) {
  const std::string bytes = writer.Bytes();
  ASSIGN_OR_RETURN(const GgufFile file, ParseWritten(bytes));
  ASSIGN_OR_RETURN(const std::string text, make(file));
  return nlohmann::json::parse(text);
}
absl::StatusOr<nlohmann::json> TokenizerOf(const GgufWriter& writer) {
  return TextOf(writer, GgufTokenizerJson);
}
absl::StatusOr<nlohmann::json> TokenizerConfigOf(const GgufWriter& writer) {
  return TextOf(writer, GgufTokenizerConfigJson);
}

// A byte-level vocabulary of "a", "b", "ab", <|end|> (control), <think> (user-defined) and one
// unused id.
GgufWriter ByteLevelWriter(std::string_view pre) {
  GgufWriter writer;
  writer.Text("tokenizer.ggml.model", "gpt2")
      .Text("tokenizer.ggml.pre", pre)
      .Texts("tokenizer.ggml.tokens", {"a", "b", "ab", "<|end|>", "<think>", "[PAD5]"})
      .I32s("tokenizer.ggml.token_type", {1, 1, 1, 3, 4, 5})
      .Texts("tokenizer.ggml.merges", {"a b"});
  return writer;
}

// <unk>, <s>, </s>, a byte, and "a", "b", "ab" with scores.
GgufWriter ScoredWriter() {
  GgufWriter writer;
  writer.Text("tokenizer.ggml.model", "llama")
      .Texts("tokenizer.ggml.tokens", {"<unk>", "<s>", "</s>", "<0x41>", "a", "b", "ab"})
      .F32s("tokenizer.ggml.scores", {0, 0, 0, 0, -2, -3, -1})
      .I32s("tokenizer.ggml.token_type", {2, 3, 3, 6, 1, 1, 1})
      .U32("tokenizer.ggml.bos_token_id", 1)
      .U32("tokenizer.ggml.eos_token_id", 2);
  return writer;
}

nlohmann::json Added(int id, const char* content, bool special) {
  return {{"id", id},        {"content", content},  {"single_word", false}, {"lstrip", false},
          {"rstrip", false}, {"normalized", false}, {"special", special}};
}

TEST(GgufTokenizerTest, ByteLevel) {
  GgufWriter writer = ByteLevelWriter("qwen2");
  writer.U32("tokenizer.ggml.eos_token_id", 3);
  const auto json = TokenizerOf(writer);
  ASSERT_TRUE(json.ok()) << json.status();
  EXPECT_EQ((*json)["model"]["vocab"], nlohmann::json({{"a", 0}, {"b", 1}, {"ab", 2}}));
  EXPECT_EQ((*json)["model"]["merges"], nlohmann::json::array({"a b"}));
  EXPECT_EQ((*json)["model"]["ignore_merges"], false);
  EXPECT_EQ((*json)["added_tokens"],
            nlohmann::json::array({Added(3, "<|end|>", true), Added(4, "<think>", false)}));
  EXPECT_EQ((*json)["normalizer"]["type"], "NFC");
  EXPECT_EQ((*json)["decoder"]["type"], "ByteLevel");
  EXPECT_TRUE((*json)["post_processor"].is_null());
}

TEST(GgufTokenizerTest, TheNameOfTheSplitDecidesTheRest) {
  for (const char* name : {"llama-bpe", "llama3", "llama-v3", "tekken"}) {
    GgufWriter writer = ByteLevelWriter(name);
    writer.U32("tokenizer.ggml.bos_token_id", 3);
    const auto json = TokenizerOf(writer);
    ASSERT_TRUE(json.ok()) << json.status();
    EXPECT_EQ((*json)["model"]["ignore_merges"], true) << name;
    EXPECT_TRUE((*json)["normalizer"].is_null()) << name;
    EXPECT_EQ((*json)["post_processor"]["single"][0]["SpecialToken"]["id"], "<|end|>") << name;
  }
  for (const char* name :
       {"gpt-2", "smollm", "starcoder", "refact", "deepseek-v3", "deepseek-coder", "qwen2",
        "deepseek-r1-qwen", "dbrx", "glm4", "chatglm-bpe", "olmo"}) {
    const auto json = TokenizerOf(ByteLevelWriter(name));
    ASSERT_TRUE(json.ok()) << json.status();
    EXPECT_EQ((*json)["model"]["ignore_merges"], false) << name;
    EXPECT_TRUE((*json)["post_processor"].is_null()) << name;
  }
}

TEST(GgufTokenizerTest, AddsTheTokensThatTheFileAsksFor) {
  GgufWriter writer = ByteLevelWriter("llama-bpe");
  writer.Bool("tokenizer.ggml.add_bos_token", false)
      .Bool("tokenizer.ggml.add_eos_token", true)
      .U32("tokenizer.ggml.eos_token_id", 3);
  const auto json = TokenizerOf(writer);
  ASSERT_TRUE(json.ok()) << json.status();
  const nlohmann::json& post = (*json)["post_processor"];
  ASSERT_EQ(post["single"].size(), 2u);
  EXPECT_EQ(post["single"][0]["Sequence"]["id"], "A");
  EXPECT_EQ(post["single"][1]["SpecialToken"]["id"], "<|end|>");
  EXPECT_EQ(post["special_tokens"]["<|end|>"]["ids"], nlohmann::json::array({3}));
}

TEST(GgufTokenizerTest, SentencePiece) {
  const auto json = TokenizerOf(ScoredWriter());
  ASSERT_TRUE(json.ok()) << json.status();
  EXPECT_EQ((*json)["model"]["vocab"],
            nlohmann::json({{"<unk>", 0}, {"<0x41>", 3}, {"a", 4}, {"b", 5}, {"ab", 6}}));
  EXPECT_EQ((*json)["model"]["merges"], nlohmann::json::parse(R"([["a", "b"]])"));
  EXPECT_EQ((*json)["model"]["unk_token"], "<unk>");
  EXPECT_EQ((*json)["model"]["byte_fallback"], true);
  EXPECT_EQ((*json)["model"]["fuse_unk"], true);
  EXPECT_EQ((*json)["added_tokens"],
            nlohmann::json::array(
                {Added(0, "<unk>", true), Added(1, "<s>", true), Added(2, "</s>", true)}));
  EXPECT_EQ((*json)["normalizer"]["normalizers"][0]["prepend"], "\u2581");
  EXPECT_EQ((*json)["decoder"]["decoders"].size(), 4u);
  EXPECT_EQ((*json)["post_processor"]["single"][0]["SpecialToken"]["id"], "<s>");
}

TEST(GgufTokenizerTest, SentencePieceWithoutASpaceBefore) {
  GgufWriter writer = ScoredWriter();
  writer.Bool("tokenizer.ggml.add_space_prefix", false);
  const auto json = TokenizerOf(writer);
  ASSERT_TRUE(json.ok()) << json.status();
  EXPECT_EQ((*json)["normalizer"]["normalizers"].size(), 1u);
  EXPECT_EQ((*json)["decoder"]["decoders"].size(), 3u);
}

// A token that ends answers is special, whatever its type says: prompts must not spell it.
// Files do not say it; in Phi-3's tokenizer it is so.
TEST(GgufTokenizerTest, SpecialTokensOfPhi3TakeTheSpacesBehindThem) {
  const auto strips = [](const GgufWriter& writer) {
    const auto json = TokenizerOf(writer);
    EXPECT_TRUE(json.ok()) << json.status();
    std::vector<bool> found;
    for (const nlohmann::json& token : (*json)["added_tokens"]) found.push_back(token["rstrip"]);
    return found;
  };
  EXPECT_EQ(strips(ScoredWriter().Text("general.architecture", "phi3")),
            (std::vector<bool>{false, false, true}));  // <unk>, <s>, </s>
  EXPECT_EQ(strips(ScoredWriter().Text("general.architecture", "llama")),
            (std::vector<bool>(3, false)));
  EXPECT_EQ(strips(ByteLevelWriter("gpt-4o").Text("general.architecture", "phi3")),
            (std::vector<bool>(2, false)));
}

TEST(GgufTokenizerTest, MarkersOfTurnsAreSpecial) {
  GgufWriter writer;
  writer.Text("tokenizer.ggml.model", "llama")
      .Texts("tokenizer.ggml.tokens", {"<unk>", "<bos>", "<start_of_turn>", "<end_of_turn>"})
      .F32s("tokenizer.ggml.scores", {0, 0, 0, 0})
      .I32s("tokenizer.ggml.token_type", {2, 3, 1, 1})
      .U32("tokenizer.ggml.bos_token_id", 1);
  const auto json = TokenizerOf(writer);
  ASSERT_TRUE(json.ok()) << json.status();
  EXPECT_EQ(
      (*json)["added_tokens"],
      nlohmann::json::array({Added(0, "<unk>", true), Added(1, "<bos>", true),
                             Added(2, "<start_of_turn>", true), Added(3, "<end_of_turn>", true)}));
}

TEST(GgufTokenizerTest, TokensWithARoleAreSpecial) {
  GgufWriter writer = ByteLevelWriter("gpt-2");
  writer.U32("tokenizer.ggml.eos_token_id", 4).U32("tokenizer.ggml.bos_token_id", 0);
  const auto json = TokenizerOf(writer);
  ASSERT_TRUE(json.ok()) << json.status();
  EXPECT_EQ((*json)["added_tokens"],
            nlohmann::json::array(
                {Added(0, "a", true), Added(3, "<|end|>", true), Added(4, "<think>", true)}));
}

TEST(GgufTokenizerTest, ConfigNamesTokensAndTheTemplate) {
  GgufWriter writer = ScoredWriter();
  writer.U32("tokenizer.ggml.padding_token_id", 2)
      .Text("tokenizer.chat_template", "{{ messages }}");
  const auto config = TokenizerConfigOf(writer);
  ASSERT_TRUE(config.ok()) << config.status();
  EXPECT_EQ(*config, nlohmann::json({{"bos_token", "<s>"},
                                     {"eos_token", "</s>"},
                                     {"unk_token", "<unk>"},
                                     {"pad_token", "</s>"},
                                     {"chat_template", "{{ messages }}"}}));
  EXPECT_EQ(*TokenizerConfigOf(ByteLevelWriter("gpt-2")), nlohmann::json::object());
}

TEST(GgufTokenizerTest, AFileWithoutTokenizerHasNone) {
  EXPECT_TRUE(absl::IsNotFound(TokenizerOf(LlamaMetadata()).status()));
  EXPECT_TRUE(absl::IsNotFound(TokenizerConfigOf(LlamaMetadata()).status()));
}

struct RefusedTokenizer {
  const char* name;
  GgufWriter writer;
  const char* error;
};

class GgufTokenizerRefusalTest : public testing::TestWithParam<RefusedTokenizer> {};

TEST_P(GgufTokenizerRefusalTest, NamesTheKey) {
  const auto json = TokenizerOf(GetParam().writer);
  ASSERT_FALSE(json.ok());
  EXPECT_TRUE(absl::IsInvalidArgument(json.status())) << json.status();
  EXPECT_THAT(Message(json.status()), HasSubstr(GetParam().error));
}

GgufWriter Vocabulary(const std::vector<std::string>& tokens, const std::vector<int32_t>& types) {
  GgufWriter writer;
  writer.Text("tokenizer.ggml.model", "llama")
      .Texts("tokenizer.ggml.tokens", tokens)
      .I32s("tokenizer.ggml.token_type", types);
  return writer;
}

GgufWriter With(GgufWriter writer, auto change) {
  change(writer);
  return writer;
}

INSTANTIATE_TEST_SUITE_P(
    Tokenizers, GgufTokenizerRefusalTest,
    testing::Values(
        RefusedTokenizer{"model", GgufWriter().Text("tokenizer.ggml.model", "bert"),
                         "\"tokenizer.ggml.model\" is \"bert\", allowed is gpt2"},
        RefusedTokenizer{"model_number", GgufWriter().U32("tokenizer.ggml.model", 1),
                         "\"tokenizer.ggml.model\" is 1, allowed is a string"},
        RefusedTokenizer{"no_tokens", GgufWriter().Text("tokenizer.ggml.model", "gpt2"),
                         "\"tokenizer.ggml.tokens\" is missing"},
        RefusedTokenizer{"empty", Vocabulary({}, {}),
                         "\"tokenizer.ggml.tokens\" is an array of 0 elements"},
        RefusedTokenizer{"token_bytes", Vocabulary({std::string(1025, 'a')}, {1}),
                         "has 1025 bytes in element 0, the limit is 1024"},
        RefusedTokenizer{"utf8", Vocabulary({"a", "\xff"}, {1, 1}),
                         "\"tokenizer.ggml.tokens\" is not valid UTF-8 in element 1"},
        RefusedTokenizer{
            "no_types",
            GgufWriter().Text("tokenizer.ggml.model", "gpt2").Texts("tokenizer.ggml.tokens", {"a"}),
            "\"tokenizer.ggml.token_type\" is missing"},
        RefusedTokenizer{"types", Vocabulary({"a", "b"}, {1}),
                         "\"tokenizer.ggml.token_type\" is an array of 1 elements, allowed is an "
                         "array of 2"},
        RefusedTokenizer{"type", Vocabulary({"a", "b"}, {1, 7}),
                         "has no integer from 1 to 6 in element 1"},
        RefusedTokenizer{"twice", Vocabulary({"a", "b", "a"}, {1, 1, 4}),
                         "\"tokenizer.ggml.tokens\" has \"a\" twice, as 0 and 2"},
        RefusedTokenizer{"no_scores", Vocabulary({"a"}, {1}),
                         "\"tokenizer.ggml.scores\" is missing"},
        RefusedTokenizer{
            "scores",
            With(Vocabulary({"a"}, {1}), [](auto& w) { w.F32s("tokenizer.ggml.scores", {NAN}); }),
            "\"tokenizer.ggml.scores\" has no number"},
        RefusedTokenizer{
            "no_bos",
            With(Vocabulary({"a"}, {1}), [](auto& w) { w.F32s("tokenizer.ggml.scores", {0}); }),
            "\"tokenizer.ggml.bos_token_id\" must name a token"},
        RefusedTokenizer{
            "bos",
            With(Vocabulary({"a"}, {1}), [](auto& w) { w.U32("tokenizer.ggml.bos_token_id", 1); }),
            "\"tokenizer.ggml.bos_token_id\" is 1, allowed is an integer from 0 to 0"},
        RefusedTokenizer{
            "eot",
            With(Vocabulary({"a"}, {1}), [](auto& w) { w.U32("tokenizer.ggml.eot_token_id", 9); }),
            "token 9 ends an answer, but there are 1 tokens"},
        RefusedTokenizer{
            "unused_bos",
            With(Vocabulary({"a"}, {5}),
                 [](auto& w) {
                   w.F32s("tokenizer.ggml.scores", {0}).U32("tokenizer.ggml.bos_token_id", 0);
                 }),
            "\"tokenizer.ggml.bos_token_id\" must name a token"},
        RefusedTokenizer{
            "spaces",
            With(ScoredWriter(),
                 [](auto& w) { w.Bool("tokenizer.ggml.remove_extra_whitespaces", true); }),
            "remove_extra_whitespaces\" is true, allowed is false"},
        RefusedTokenizer{"no_pre",
                         GgufWriter()
                             .Text("tokenizer.ggml.model", "gpt2")
                             .Texts("tokenizer.ggml.tokens", {"a"})
                             .I32s("tokenizer.ggml.token_type", {1}),
                         "\"tokenizer.ggml.pre\" is missing"},
        RefusedTokenizer{"pre", ByteLevelWriter("default"),
                         "\"tokenizer.ggml.pre\" is \"default\", allowed is one of "
                         "chatglm-bpe, dbrx, deepseek-coder, deepseek-llm, "
                         "deepseek-r1-qwen"},
        RefusedTokenizer{"table",
                         With(ScoredWriter(),
                              [](auto& w) {
                                w.Tensor("token_embd.weight", "F32", {6, 8});
                              }),
                         "has 7 tokens, but token_embd.weight has 6 rows"}),
    [](const auto& tested) { return tested.param.name; });

std::string Shown(const std::vector<ScoredPiece>& pieces) {
  const auto merges = MergesByScore(pieces);
  EXPECT_TRUE(merges.ok()) << merges.status();
  std::string text;
  for (const PieceMerge& merge : *merges) text += fmt::format("{}+{} ", merge.left, merge.right);
  return text;
}

TEST(MergesByScoreTest, EverySplitOfEveryPiece) {
  EXPECT_EQ(Shown({{"a", 0, -9},
                   {"b", 1, -9},
                   {"c", 2, -9},
                   {"ab", 3, -1},
                   {"bc", 4, -2},
                   {"abc", 5, -3},
                   {"xy", 6, 0}}),
            "a+b b+c ab+c a+bc ");
}

TEST(MergesByScoreTest, EqualScoresGoByLengthAndThenById) {
  EXPECT_EQ(
      Shown({{"a", 0, 0}, {"ab", 1, 0}, {"b", 2, 0}, {"aba", 3, 0}, {"ba", 4, 0}, {"abab", 5, 0}}),
      "aba+b ab+ab ab+a a+ba a+b b+a ");
}

TEST(MergesByScoreTest, LengthsAreOfCodePoints) {
  EXPECT_EQ(Shown({{"é", 0, 0}, {"aa", 1, 0}, {"a", 2, 0}, {"éa", 3, -1}, {"aaé", 4, -1}}),
            "a+a aa+é é+a ");
}

}  // namespace
}  // namespace penstock
