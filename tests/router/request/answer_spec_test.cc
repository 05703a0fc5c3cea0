#include "router/request/answer_spec.h"

#include <gmock/gmock.h>
#include <google/protobuf/text_format.h>
#include <gtest/gtest.h>

#include <cmath>

namespace penstock {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

const ModelLimits kLimits{
    .name = "tiny", .vocab = 1000, .max_model_len = 2048, .eos_token_ids = {7, 8}};

v1::GenerateRequest Parse(const std::string& text) {
  v1::GenerateRequest request;
  EXPECT_TRUE(google::protobuf::TextFormat::ParseFromString(text, &request)) << text;
  return request;
}

absl::StatusOr<AnswerSpec> Validate(const std::string& text) {
  return ValidateAnswer(Parse(text), kLimits, /*random_seed=*/99);
}

std::string Repeat(int times, const std::string& text) {
  std::string all;
  for (int i = 0; i < times; ++i) all += text;
  return all;
}

struct Refused {
  std::string request;
  std::string message;  // a part of it
};

class RefusedRequest : public ::testing::TestWithParam<Refused> {};

TEST_P(RefusedRequest, NamesFieldValueAndLimit) {
  const auto answer = Validate(GetParam().request);
  ASSERT_FALSE(answer.ok()) << GetParam().request;
  EXPECT_EQ(answer.status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(Message(answer.status()), HasSubstr(GetParam().message));
}

INSTANTIATE_TEST_SUITE_P(
    Sampling, RefusedRequest,
    ::testing::Values(
        Refused{"sampling { temperature: -0.5 }",
                "sampling.temperature is -0.5; it must be in [0, 2]"},
        Refused{"sampling { temperature: 2.5 }", "sampling.temperature is 2.5"},
        Refused{"sampling { temperature: nan }", "sampling.temperature is nan"},
        Refused{"sampling { temperature: inf }", "sampling.temperature is inf"},
        Refused{"sampling { n: 3 best_of: 2 }",
                "sampling.best_of is 2; it must be in [n, 16], and n is 3"},
        Refused{"sampling { best_of: 17 }", "sampling.best_of is 17"},
        Refused{"sampling { n: 3 beam_search { width: 2 } }",
                "sampling.beam_search.width is 2; it must be in [n, 8], and n is 3"},
        Refused{"sampling { beam_search { width: 9 } }", "sampling.beam_search.width is 9"},
        Refused{"sampling { best_of: 2 beam_search { width: 2 } }", "with best_of; set width"},
        Refused{"sampling { beam_search { width: 2 } } structured { regex: 'a' }",
                "sampling.beam_search cannot be combined with structured output"},
        Refused{"sampling { beam_search { width: 2 length_penalty: nan } }",
                "sampling.beam_search.length_penalty is nan"},
        Refused{"sampling { beam_search { width: 2 early_stopping: 7 } }",
                "sampling.beam_search.early_stopping is 7"},
        Refused{"output { prompt_logprobs: 21 }", "output.prompt_logprobs is 21; the limit is 20"},
        Refused{"sampling { top_p: 0 }", "sampling.top_p is 0; it must be in (0, 1]"},
        Refused{"sampling { top_p: 1.5 }", "sampling.top_p is 1.5"},
        Refused{"sampling { min_p: 1 }", "sampling.min_p is 1; it must be in [0, 1)"},
        Refused{"sampling { min_p: -1 }", "sampling.min_p is -1"},
        Refused{"sampling { frequency_penalty: 3 }",
                "sampling.frequency_penalty is 3; it must be in [-2, 2]"},
        Refused{"sampling { frequency_penalty: nan }", "sampling.frequency_penalty is nan"},
        Refused{"sampling { presence_penalty: -2.5 }", "sampling.presence_penalty is -2.5"},
        Refused{"sampling { repetition_penalty: 0 }",
                "sampling.repetition_penalty is 0; it must be in (0, 10]"},
        Refused{"sampling { repetition_penalty: 11 }", "sampling.repetition_penalty is 11"},
        Refused{"sampling { n: 0 }", "sampling.n is 0; it must be in [1, 16]"},
        Refused{"sampling { n: 17 }", "sampling.n is 17"},
        Refused{"sampling { logit_bias { key: 1000 value: 1 } }",
                "sampling.logit_bias has token id 1000; the vocabulary of tiny ends at 999"},
        Refused{"sampling { logit_bias { key: 5 value: 101 } }",
                "sampling.logit_bias[5] is 101; it must be in [-100, 100]"},
        Refused{"sampling { logit_bias { key: 5 value: nan } }", "sampling.logit_bias[5] is nan"}));

INSTANTIATE_TEST_SUITE_P(
    StopAndOutput, RefusedRequest,
    ::testing::Values(
        Refused{"stop { max_tokens: 0 }",
                "stop.max_tokens is 0; it must be in [1, 1073741824], or 0 with echo, "
                "prompt_logprobs or embedding"},
        Refused{"stop { max_tokens: 1073741825 }",
                "stop.max_tokens is 1073741825; it must be in [0, 1073741824]"},
        Refused{"stop { max_tokens: 5 min_tokens: 6 }",
                "stop.min_tokens is 6; it may be at most max_tokens, which is 5"},
        Refused{"stop { min_tokens: 2049 }",
                "stop.min_tokens is 2049; the context of tiny has 2048"},
        Refused{"stop { stop: '' }", "stop.stop[0] has 0 bytes; it must have 1 to 256"},
        Refused{"stop { stop: 'ok' stop: '" + Repeat(257, "a") + "' }",
                "stop.stop[1] has 257 bytes"},
        Refused{"stop { " + Repeat(17, "stop: 'a' ") + "}",
                "stop.stop has 17 strings; the limit is 16"},
        Refused{"stop { stop_token_ids: 1000 }", "stop.stop_token_ids has token id 1000"},
        Refused{"stop { " + Repeat(65, "stop_token_ids: 1 ") + "}",
                "stop.stop_token_ids has 65 entries; the limit is 64"},
        Refused{"output { top_logprobs: 21 }", "output.top_logprobs is 21; the limit is 20"},
        Refused{"client_request_id: '" + Repeat(129, "x") + "'",
                "client_request_id has 129 bytes; the limit is 128"},
        Refused{"client_request_id: 'a\\nb'",
                "client_request_id has a control character at byte 1"}));

TEST(ValidateAnswer, RefusesTooManyLogitBiases) {
  v1::GenerateRequest request;
  for (uint32_t id = 0; id < 1025; ++id) {
    (*request.mutable_sampling()->mutable_logit_bias())[id % 2000] = 1;
  }
  const auto answer = ValidateAnswer(request, kLimits, 1);
  EXPECT_THAT(Message(answer.status()),
              HasSubstr("sampling.logit_bias has 1025 entries; the limit is 1024"));
}

TEST(ValidateAnswer, RefusesAnUnknownModel) {
  const auto answer = Validate("model: 'gpt-9'");
  EXPECT_EQ(answer.status().code(), absl::StatusCode::kNotFound);
  EXPECT_THAT(Message(answer.status()), HasSubstr("model \"gpt-9\" not found; available: tiny"));
  EXPECT_TRUE(Validate("model: 'tiny'").ok());
}

TEST(ValidateAnswer, TakesAnAliasOfTheModel) {
  ModelLimits limits = kLimits;
  limits.aliases = {"gpt-4o", "default"};
  for (const char* name : {"", "tiny", "gpt-4o", "default"}) {
    EXPECT_TRUE(CheckModelName(name, limits).ok()) << name;
  }
  EXPECT_THAT(Message(CheckModelName("gpt-9", limits)),
              HasSubstr("model \"gpt-9\" not found; available: tiny, gpt-4o, default"));
}

TEST(ValidateAnswer, FillsInDefaults) {
  const auto answer = Validate("");
  ASSERT_TRUE(answer.ok()) << answer.status();
  const v1::SamplingSpec& spec = answer->sampling;
  EXPECT_EQ(spec.temperature(), 1.0f);
  EXPECT_EQ(spec.top_p(), 1.0f);
  EXPECT_EQ(spec.repetition_penalty(), 1.0f);
  EXPECT_EQ(spec.choices(), 1u);
  EXPECT_EQ(spec.seed(), 99u);
  EXPECT_THAT(spec.stop_token_ids(), ElementsAre(7, 8));
  EXPECT_TRUE(answer->skip_special_tokens);
  EXPECT_FALSE(answer->return_logprobs);
}

TEST(ValidateAnswer, TakesEveryFieldAtItsLimit) {
  const auto answer = Validate(
      "sampling { temperature: 2 top_p: 1 top_k: 5000 min_p: 0.99 frequency_penalty: -2 "
      "presence_penalty: 2 repetition_penalty: 10 seed: -1 n: 16 "
      "logit_bias { key: 999 value: -100 } } "
      "stop { max_tokens: 1 min_tokens: 1 ignore_eos: true stop_token_ids: 999 stop: 'x' "
      "include_stop_in_output: true } "
      "output { top_logprobs: 20 skip_special_tokens: false return_token_ids: true timing: true }");
  ASSERT_TRUE(answer.ok()) << answer.status();
  EXPECT_EQ(answer->sampling.seed(), ~uint64_t{0});
  EXPECT_EQ(answer->sampling.top_k(), 1000u) << "beyond the vocabulary there is nothing to keep";
  EXPECT_THAT(answer->sampling.stop_token_ids(), ElementsAre(999));
  EXPECT_THAT(answer->stop, ElementsAre("x"));
  EXPECT_TRUE(answer->return_logprobs);
  EXPECT_FALSE(answer->skip_special_tokens);
}

uint32_t FittedMaxTokens(const std::string& request, size_t prompt_tokens) {
  auto answer = Validate(request);
  EXPECT_TRUE(FitToContext(prompt_tokens, kLimits, *answer).ok());
  return answer->sampling.max_tokens();
}

TEST(FitToContext, SettlesMaxTokens) {
  EXPECT_EQ(FittedMaxTokens("", 10), 1024u);
  EXPECT_EQ(FittedMaxTokens("", 2000), 48u);
  EXPECT_EQ(FittedMaxTokens("stop { max_tokens: 5 }", 10), 5u);
  EXPECT_EQ(FittedMaxTokens("stop { max_tokens: 5000 }", 48), 2000u);
  EXPECT_EQ(FittedMaxTokens("stop { min_tokens: 1500 }", 10), 1500u);
  EXPECT_EQ(FittedMaxTokens("", 2047), 1u);
}

TEST(FitToContext, RefusesAPromptWithoutRoomForAnAnswer) {
  auto answer = Validate("");
  const absl::Status status = FitToContext(2048, kLimits, *answer);
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(Message(status), HasSubstr("has 2048 tokens; the context of tiny has 2048"));
  EXPECT_THAT(Message(status), HasSubstr("shorten the prompt to 2047"));
}

TEST(FitToContext, LimitsTheLogprobsOfAnEchoedPrompt) {
  ModelLimits limits = kLimits;
  limits.max_model_len = 100'000;
  auto answer = Validate("output { echo: true top_logprobs: 3 }");
  EXPECT_TRUE(FitToContext(16'384, limits, *answer).ok());
  const absl::Status status = FitToContext(16'385, limits, *answer);
  EXPECT_THAT(Message(status), HasSubstr("output.echo"));
  EXPECT_THAT(Message(status),
              HasSubstr("has 16385 tokens; with 3 alternatives of each, the limit is 16384"));
  auto text = Validate("output { echo: true }");
  EXPECT_TRUE(FitToContext(99'000, limits, *text).ok());
}

TEST(ValidateAnswer, RefusesToEchoAChat) {
  const auto answer = Validate("chat { messages { role: 'user' } } output { echo: true }");
  EXPECT_THAT(Message(answer.status()),
              HasSubstr("output.echo is for prompts of text or token ids"));
}

TEST(ValidateAnswer, BestOfComputesMoreChoicesThanTheClientGets) {
  const auto answer = Validate("sampling { n: 2 best_of: 5 }");
  ASSERT_TRUE(answer.ok()) << answer.status();
  EXPECT_EQ(answer->answers, 2u);
  EXPECT_EQ(answer->sampling.choices(), 5u);
  EXPECT_TRUE(answer->keeps_best());
  EXPECT_FALSE(Validate("sampling { n: 2 best_of: 2 }")->keeps_best());
}

TEST(ValidateAnswer, ABeamSearchNeedsATokenForEveryBeam) {
  const auto answer = Validate(
      "sampling { n: 2 beam_search { width: 4 length_penalty: -1 early_stopping: AT_ONCE } }");
  ASSERT_TRUE(answer.ok()) << answer.status();
  EXPECT_EQ(answer->sampling.choices(), 2u);
  EXPECT_EQ(answer->sampling.beams().width(), 4u);
  EXPECT_EQ(answer->sampling.beams().length_penalty(), -1);
  EXPECT_FALSE(answer->keeps_best());
  const std::string stops = Repeat(60, "stop_token_ids: 5 ");
  EXPECT_TRUE(Validate("sampling { beam_search { width: 8 } } stop { " + stops + "}").ok());
  const auto few = ValidateAnswer(Parse("sampling { beam_search { width: 8 } }"),
                                  {.name = "tiny", .vocab = 23, .max_model_len = 64}, 0);
  EXPECT_TRUE(few.ok()) << few.status();
  const auto fewer = ValidateAnswer(Parse("sampling { beam_search { width: 8 } }"),
                                    {.name = "tiny", .vocab = 15, .max_model_len = 64}, 0);
  EXPECT_THAT(Message(fewer.status()), HasSubstr("needs 16 candidates"));
}

TEST(ValidateAnswer, WithoutAnAnswerThePromptMustBeWanted) {
  const auto scored = Validate("stop { max_tokens: 0 } output { prompt_logprobs: 3 }");
  ASSERT_TRUE(scored.ok()) << scored.status();
  EXPECT_TRUE(scored->prompt_only);
  EXPECT_TRUE(scored->scores_prompt());
  EXPECT_EQ(scored->sampling.max_tokens(), 1u);
  EXPECT_EQ(scored->prompt_alternatives(), 3u);
}

}  // namespace
}  // namespace penstock
