#include "worker/engine/step_outputs.h"

#include <gtest/gtest.h>

#include <cmath>
#include <random>

#include "model/sampler/token_draw.h"
#include "worker/engine/sampling_spec.h"

namespace penstock {
namespace {

constexpr int32_t kVocab = 300;

std::vector<float> LogitsOf(uint32_t token) {
  std::mt19937 random(token);
  std::normal_distribution<float> normal(0, 2);
  std::vector<float> logits(kVocab);
  for (float& logit : logits) logit = normal(random);
  return logits;
}

// Logits of a sequence's last token, and tokens drawn from them.
class LastTokenRunner final : public ModelRunner {
 public:
  explicit LastTokenRunner(bool draws) : draws_(draws) {}
  int32_t vocab() const override { return kVocab; }
  KvLayout kv_layout() const override { return {}; }
  int32_t max_position() const override { return 100; }
  bool draws_tokens() const override { return draws_; }
  absl::Status Step(const StepArgs& args) override {
    int64_t row = 0;
    auto drawn = args.drawn.begin();
    for (const SequenceStep& step : args.sequences) {
      const std::vector<float> logits = LogitsOf(step.tokens.back());
      if (step.wants_logits) std::copy(logits.begin(), logits.end(), args.logits.row(row++));
      for (const DrawSpec& draw : step.draws) *drawn++ = DrawOf(logits, draw);
    }
    EXPECT_EQ(row, args.logits.dim(0));
    EXPECT_EQ(drawn, args.drawn.end());
    rows += row;
    return absl::OkStatus();
  }
  int64_t rows = 0;  // of logits, since the start

 private:
  static DrawnToken DrawOf(const std::vector<float>& logits, const DrawSpec& draw) {
    DrawnToken drawn{.max = MaxLogit(logits)};
    drawn.total_mass = TotalMass(Softmax::At(drawn.max, 1.0), logits);
    std::vector<float> own = logits;
    drawn.id = DrawToken(own, draw);
    drawn.logit = logits[drawn.id];
    return drawn;
  }
  const bool draws_;
};

std::vector<SamplingParams> Params() {
  return {{.temperature = 0},
          {.temperature = 1.5f, .seed = 1},
          {.seed = 2, .logit_bias = {{3, 5.0f}}},
          {.top_p = 0.7f, .top_k = 20, .min_p = 0.02f, .seed = 3},
          {.frequency_penalty = 0.5f, .seed = 4},
          {.repetition_penalty = 1.2f, .seed = 5},
          {.presence_penalty = 0.5f, .seed = 6},
          {.seed = 7, .stop_token_ids = {1, 2}, .min_tokens = 3},
          {.temperature = 0, .stop_token_ids = {1, 2, 3, 4, 5, 6, 7, 8, 9}, .min_tokens = 2},
          {.seed = 8, .top_logprobs = 3}};
}

struct Answer {
  std::vector<uint32_t> ids;
  std::vector<float> logprobs;
  bool operator==(const Answer&) const = default;
};

// Four tokens of every kind of session, in one batch.
std::vector<Answer> Answers(LastTokenRunner& runner) {
  StepOutputs outputs(runner);
  std::vector<Sampler> samplers;
  for (const SamplingParams& params : Params()) samplers.emplace_back(params, 2, std::vector{9u});
  std::vector<Answer> answers(samplers.size());
  std::vector<uint32_t> last(samplers.size(), 9);
  for (int turn = 0; turn < 4; ++turn) {
    std::vector<SequenceStep> steps;
    for (size_t i = 0; i < samplers.size(); ++i) {
      steps.push_back({.tokens = {&last[i], 1}});
      outputs.Want(steps.back(), samplers[i].OwnDraws());
    }
    steps.push_back({.tokens = {&last[0], 1}});  // of whom nothing is wanted
    EXPECT_TRUE(outputs.Run({.sequences = steps}).ok());
    for (size_t i = 0; i < samplers.size(); ++i) {
      const SampledToken sampled = outputs.at(i).Sample(samplers[i]);
      answers[i].ids.push_back(last[i] = sampled.id);
      answers[i].logprobs.push_back(sampled.logprob);
    }
  }
  return answers;
}

TEST(StepOutputs, AreTheSameWhoeverDraws) {
  LastTokenRunner host(false), device(true);
  EXPECT_EQ(Answers(host), Answers(device));
  EXPECT_EQ(host.rows, 4 * 10);
  // Five need theirs, and one with more stop tokens than a draw takes does before min_tokens.
  EXPECT_EQ(device.rows, 4 * 5 + 2);
}

TEST(StepOutputs, AStepMayWantNothing) {
  LastTokenRunner runner(true);
  StepOutputs outputs(runner);
  const uint32_t token = 4;
  SequenceStep step{.tokens = {&token, 1}};
  outputs.Want(step, {DrawSpec{}});
  EXPECT_TRUE(outputs.Run({.sequences = {&step, 1}}).ok());
  const SequenceStep other{.tokens = {&token, 1}};
  EXPECT_TRUE(outputs.Run({.sequences = {&other, 1}}).ok());
}

TEST(StepOutputs, FirstTokensOfEveryChoiceAreTheSame) {
  const std::vector<uint32_t> tokens = {5, 6, 7};
  for (const SamplingParams& params : Params()) {
    const StopRule stop{.stop_token_ids = {}, .tokens_max = 10};
    const FirstTokensArgs args{.sampling = params,
                               .stop = stop,
                               .tokens = tokens,
                               .prompt_tokens = 2,
                               .first_choice = 1,
                               .choices = 3};
    std::vector<std::string> firsts;
    for (const bool draws : {false, true}) {
      LastTokenRunner runner(draws);
      StepOutputs outputs(runner);
      SequenceStep step{.tokens = tokens};
      outputs.Want(step, FirstDraws(args));
      ASSERT_TRUE(outputs.Run({.sequences = {&step, 1}}).ok());
      const auto first = MakeFirstTokens(args, {}, outputs.at(0));
      ASSERT_TRUE(first.ok());
      EXPECT_EQ(first->tokens_size(), 3);
      firsts.push_back(first->SerializeAsString());
    }
    EXPECT_EQ(firsts[0], firsts[1]) << params.seed;
  }
}

TEST(StepOutputs, WhereNoLogitIsFiniteThereIsNoToken) {
  const DrawnToken none;
  const StepOutput drawn{.logits = {}, .drawn = {&none, 1}};
  Sampler sampler({}, 0, {});
  EXPECT_TRUE(std::isnan(drawn.Sample(sampler).logprob));
  EXPECT_EQ(sampler.output_tokens(), 1);
}

}  // namespace
}  // namespace penstock
