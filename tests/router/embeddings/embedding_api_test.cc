// The JSON of the Embeddings API: requests and answers.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "router/embeddings/embedding_writer.h"
#include "router/embeddings/request.h"

namespace penstock {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

absl::StatusOr<EmbeddingRequest> Parse(const std::string& text) {
  return ParseEmbeddingRequest(Json::parse(text));
}

TEST(EmbeddingRequestTest, InputsAreTextsOrTokenIds) {
  const auto one = Parse(R"({"model": "m", "input": "hello", "cache_salt": "s"})");
  ASSERT_TRUE(one.ok()) << one.status();
  ASSERT_EQ(one->prompts.size(), 1u);
  EXPECT_EQ(one->encoding, EmbeddingEncoding::kFloat);
  const v1::GenerateRequest& request = one->prompts[0];
  EXPECT_EQ(request.model(), "m");
  EXPECT_EQ(request.text(), "hello");
  EXPECT_EQ(request.cache().salt(), "s");
  EXPECT_TRUE(request.stop().has_max_tokens());
  EXPECT_EQ(request.stop().max_tokens(), 0u);
  EXPECT_TRUE(request.output().has_embedding());
  EXPECT_FALSE(request.output().embedding().has_dimensions());
  const auto ids = Parse(R"({"input": [5, 6], "encoding_format": "base64", "dimensions": 3})");
  ASSERT_TRUE(ids.ok()) << ids.status();
  EXPECT_EQ(ids->encoding, EmbeddingEncoding::kBase64);
  EXPECT_THAT(ids->prompts[0].tokens().ids(), ElementsAre(5, 6));
  EXPECT_EQ(ids->prompts[0].output().embedding().dimensions(), 3u);
  const auto both = Parse(R"({"input": ["a", [7]]})");
  ASSERT_TRUE(both.ok()) << both.status();
  EXPECT_EQ(both->prompts[0].text(), "a");
  EXPECT_THAT(both->prompts[1].tokens().ids(), ElementsAre(7));
}

TEST(EmbeddingRequestTest, ErrorsNameTheField) {
  const auto refusal = [](const std::string& text) { return Message(Parse(text).status()); };
  EXPECT_THAT(refusal("[]"), HasSubstr("must be a JSON object"));
  EXPECT_THAT(refusal("{}"), HasSubstr("input is needed"));
  EXPECT_THAT(refusal(R"({"input": []})"), HasSubstr("input is empty"));
  EXPECT_THAT(refusal(R"({"input": ["a", 3]})"), HasSubstr("input[1] must be a string"));
  EXPECT_THAT(refusal(R"({"input": "a", "dimensions": 0})"), HasSubstr("dimensions"));
  EXPECT_THAT(refusal(R"({"input": "a", "encoding_format": "int8"})"),
              HasSubstr("encoding_format is \"int8\"; it must be"));
  EXPECT_THAT(refusal(R"({"input": "a", "add_special_tokens": false})"),
              HasSubstr("add_special_tokens"));
  for (const char* name : {"messages", "normalize", "truncate_prompt_tokens"}) {
    EXPECT_THAT(refusal(fmt::format(R"({{"input": "a", "{}": 1}})", name)),
                HasSubstr(fmt::format("{} is not supported", name)));
  }
  Json many = {{"input", Json::array()}};
  for (size_t i = 0; i <= kMaxEmbeddingInputs; ++i) many["input"].push_back("a");
  EXPECT_THAT(refusal(many.dump()), HasSubstr("has 1025 prompts; the limit is 1024"));
}

v1::GenerateUnaryResponse TwoEmbeddings() {
  v1::GenerateUnaryResponse answer;
  for (const float value : {0.5f, -1.0f}) {
    v1::Choice& choice = *answer.add_choices();
    choice.add_embedding(value);
    choice.add_embedding(2);
  }
  answer.mutable_usage()->set_prompt_tokens(7);
  answer.mutable_usage()->set_cached_tokens(4);
  answer.mutable_usage()->set_completion_tokens(2);
  return answer;
}

TEST(EmbeddingWriterTest, ListsNumbers) {
  const Json written =
      Json::parse(EmbeddingWriter("m", EmbeddingEncoding::kFloat).Whole(TwoEmbeddings()));
  EXPECT_EQ(written, Json::parse(R"({"object": "list", "model": "m",
      "data": [{"object": "embedding", "index": 0, "embedding": [0.5, 2.0]},
               {"object": "embedding", "index": 1, "embedding": [-1.0, 2.0]}],
      "usage": {"prompt_tokens": 7, "total_tokens": 7,
                "prompt_tokens_details": {"cached_tokens": 4}}})"));
}

TEST(EmbeddingWriterTest, Base64HasTheirBytes) {
  const Json written =
      Json::parse(EmbeddingWriter("m", EmbeddingEncoding::kBase64).Whole(TwoEmbeddings()));
  EXPECT_EQ(written["data"][0]["embedding"], "AAAAPwAAAEA=");
}

}  // namespace
}  // namespace penstock
