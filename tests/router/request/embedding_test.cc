#include "router/request/embedding.h"

#include <gmock/gmock.h>
#include <google/protobuf/text_format.h>
#include <gtest/gtest.h>

#include "lab/fake/test_model.h"
#include "router/request/answer_spec.h"

namespace penstock {
namespace {

using ::testing::ElementsAre;
using ::testing::FloatEq;
using ::testing::HasSubstr;

class EmbeddingTest : public ::testing::Test {
 protected:
  EmbeddingTest() { model_.embedding = EmbeddingConfig{.dimensions = 4, .normalise = true}; }

  absl::StatusOr<AnswerSpec> Take(const std::string& text) const {
    v1::GenerateRequest request;
    EXPECT_TRUE(google::protobuf::TextFormat::ParseFromString(text, &request)) << text;
    ASSIGN_OR_RETURN(
        AnswerSpec answer,
        ValidateAnswer(
            request,
            {.name = model_.name, .vocab = model_.vocab, .max_model_len = 64, .eos_token_ids = {7}},
            0));
    RETURN_IF_ERROR(TakeEmbedding(request, model_, answer));
    return answer;
  }
  std::string RefusalOf(const std::string& text) const { return Message(Take(text).status()); }

  ServedModel model_ = MakeTestModel();
};

TEST_F(EmbeddingTest, HasTheModelsDimensionsOrFewer) {
  EXPECT_FALSE(Take("").value().embedding.has_value());
  const auto whole = Take("stop { max_tokens: 0 } output { embedding {} }");
  ASSERT_TRUE(whole.ok()) << whole.status();
  EXPECT_EQ(whole->embedding->hidden, 4u);
  EXPECT_EQ(whole->embedding->dimensions, 4u);
  EXPECT_TRUE(whole->embedding->normalise);
  EXPECT_EQ(Take("stop { max_tokens: 0 } output { embedding { dimensions: 3 } }")
                .value()
                .embedding->dimensions,
            3u);
  for (const char* dimensions : {"0", "5"}) {
    EXPECT_THAT(
        RefusalOf(fmt::format(
            "stop {{ max_tokens: 0 }} output {{ embedding {{ dimensions: {} }} }}", dimensions)),
        HasSubstr(fmt::format("dimensions is {}; it must be in [1, 4]", dimensions)));
  }
}

TEST_F(EmbeddingTest, ComesWithNothingElse) {
  EXPECT_THAT(RefusalOf("output { embedding {} }"), HasSubstr("needs stop.max_tokens to be 0"));
  for (const char* more : {"sampling { n: 2 }", "sampling { best_of: 2 }"}) {
    EXPECT_THAT(RefusalOf(std::string(more) + " stop { max_tokens: 0 } output { embedding {} }"),
                HasSubstr("one for each prompt"));
  }
  for (const char* more :
       {"output { embedding {} echo: true }", "output { embedding {} prompt_logprobs: 0 }",
        "output { embedding {} } sampling { beam_search { width: 1 } }",
        "output { embedding {} } structured { regex: 'a' }"}) {
    EXPECT_THAT(RefusalOf(std::string(more) + " stop { max_tokens: 0 }"),
                HasSubstr("cannot be combined"))
        << more;
  }
}

TEST_F(EmbeddingTest, AModelThatHasNoneSaysWhy) {
  model_.embedding = InvalidArgument("1_Pooling/config.json: pooling_mode is \"mean\"");
  const auto refused = Take("stop { max_tokens: 0 } output { embedding {} }");
  EXPECT_EQ(refused.status().code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(Message(refused.status()), HasSubstr("gives no embeddings: 1_Pooling"));
}

TEST(MakeEmbedding, NormalisesWhatIsLeft) {
  const std::vector<float> hidden = {3, 4, 12, 0};
  EXPECT_THAT(MakeEmbedding(hidden, {.hidden = 4, .dimensions = 4}), ElementsAre(3, 4, 12, 0));
  EXPECT_THAT(MakeEmbedding(hidden, {.hidden = 4, .dimensions = 3, .normalise = true}),
              ElementsAre(FloatEq(3 / 13.f), FloatEq(4 / 13.f), FloatEq(12 / 13.f)));
  EXPECT_THAT(MakeEmbedding(hidden, {.hidden = 4, .dimensions = 2, .normalise = true}),
              ElementsAre(FloatEq(0.6f), FloatEq(0.8f)));
  const std::vector<float> zeros = {0, 0};
  EXPECT_THAT(MakeEmbedding(zeros, {.hidden = 2, .dimensions = 2, .normalise = true}),
              ElementsAre(0, 0));
}

}  // namespace
}  // namespace penstock
