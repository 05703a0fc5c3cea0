// The choice of experts, by hand and against itself in other batches.

#include "kernels/experts.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <numeric>
#include <vector>

#include "kernels/cpu/thread_pool.h"
#include "tests/kernels/random_data.h"

namespace penstock {
namespace {

struct Choice {
  std::vector<int32_t> chosen;
  std::vector<float> weights;

  bool operator==(const Choice&) const = default;
};

Choice RouteRows(const Exec& exec, const std::vector<float>& input,
                 const std::vector<float>& router, int64_t hidden, int64_t per_token,
                 bool normalise, const std::vector<float>& bias = {}) {
  const int64_t tokens = static_cast<int64_t>(input.size()) / hidden;
  const int64_t experts = static_cast<int64_t>(router.size()) / hidden;
  std::vector<float> scores(static_cast<size_t>(tokens * experts));
  Choice choice{.chosen = std::vector<int32_t>(static_cast<size_t>(tokens * per_token)),
                .weights = std::vector<float>(static_cast<size_t>(tokens * per_token))};
  Route(exec, {.input = {input.data(), {tokens, hidden}},
               .router = {router.data(), {experts, hidden}},
               .bias = bias.empty() ? View<const float, 1>()
                                    : View<const float, 1>(bias.data(), {experts}),
               .normalise = normalise,
               .scores = {scores.data(), {tokens, experts}},
               .chosen = {choice.chosen.data(), {tokens, per_token}},
               .weights = {choice.weights.data(), {tokens, per_token}}});
  return choice;
}

// One input of 1, so that the router's numbers are the scores.
Choice RouteScores(const std::vector<float>& scores, int64_t per_token, bool normalise) {
  return RouteRows({}, {1.0f}, scores, 1, per_token, normalise);
}

// One input of 1 again, with a rule beside the scores.
Choice RouteBy(RouteArgs rule, const std::vector<float>& scores, int64_t per_token) {
  const auto experts = static_cast<int64_t>(scores.size());
  const float one = 1;
  std::vector<float> scratch(scores.size());
  Choice choice{.chosen = std::vector<int32_t>(static_cast<size_t>(per_token)),
                .weights = std::vector<float>(static_cast<size_t>(per_token))};
  rule.input = {&one, {1, 1}};
  rule.router = {scores.data(), {experts, 1}};
  rule.scores = {scratch.data(), {1, experts}};
  rule.chosen = {choice.chosen.data(), {1, per_token}};
  rule.weights = {choice.weights.data(), {1, per_token}};
  Route({}, rule);
  return choice;
}

float Sigmoid(float x) { return 1 / (1 + std::exp(-x)); }
float Logit(float probability) { return std::log(probability / (1 - probability)); }

View<const float, 1> Bias(const std::vector<float>& bias) {
  return {bias.data(), {static_cast<int64_t>(bias.size())}};
}

class ExpertsTest : public testing::TestWithParam<Isa> {
 protected:
  ScopedIsa isa_{GetParam()};
};

TEST_P(ExpertsTest, ChoosesHighScoresAndOfEqualOnesTheLowerIds) {
  EXPECT_EQ(RouteScores({2, 2, 2, 2, 2}, 3, true).chosen, (std::vector<int32_t>{0, 1, 2}));
  const Choice even = RouteScores({2, 2, 2, 2}, 4, true);
  EXPECT_EQ(even.chosen, (std::vector<int32_t>{0, 1, 2, 3}));
  EXPECT_EQ(even.weights, std::vector<float>(4, 0.25f));
  EXPECT_EQ(RouteScores({-1, 3, 0.5f, 3, 4}, 4, false).chosen, (std::vector<int32_t>{4, 1, 3, 2}));
  EXPECT_EQ(RouteScores({-0.0f, 0.0f, -1e-42f}, 2, true).chosen, (std::vector<int32_t>{0, 1}));
}

TEST_P(ExpertsTest, WeightsAreASoftmaxOverAllOrOverTheChosen) {
  const double e[] = {std::exp(0.0), std::exp(1.0), std::exp(-2.0)};
  const Choice all = RouteScores({0, 1, -2}, 2, false);
  EXPECT_NEAR(all.weights[0], e[1] / (e[0] + e[1] + e[2]), 1e-6);
  EXPECT_NEAR(all.weights[1], e[0] / (e[0] + e[1] + e[2]), 1e-6);
  const Choice chosen = RouteScores({0, 1, -2}, 2, true);
  EXPECT_NEAR(chosen.weights[0], e[1] / (e[0] + e[1]), 1e-6);
  EXPECT_NEAR(chosen.weights[1], e[0] / (e[0] + e[1]), 1e-6);
  const Choice far = RouteScores({500, -500, 499}, 2, true);  // no overflow
  EXPECT_NEAR(far.weights[0], 1 / (1 + std::exp(-1.0)), 1e-6);
}

// gpt-oss: the bias takes part in the choice, in ties, and in the softmax over the chosen.
TEST_P(ExpertsTest, ABiasIsAddedToTheScores) {
  const Choice tied = RouteRows({}, {1.0f}, {1, 3, 0, 2}, 1, 2, true, {2, 0, 3, 0});
  EXPECT_EQ(tied.chosen, (std::vector<int32_t>{0, 1}));
  EXPECT_EQ(tied.weights, (std::vector<float>{0.5f, 0.5f}));
  const Choice moved = RouteRows({}, {1.0f}, {1, 3, 0, 2}, 1, 2, true, {0, -9, 4, 0});
  EXPECT_EQ(moved.chosen, (std::vector<int32_t>{2, 3}));
  EXPECT_NEAR(moved.weights[0], 1 / (1 + std::exp(-2.0)), 1e-6);
  const Choice rows = RouteRows({}, {1.0f, -1.0f}, {1, 3, 0, 2}, 1, 1, true, {2, 0, 3, 0});
  EXPECT_EQ(rows.chosen, (std::vector<int32_t>{0, 2}));
}

// DeepSeek-V2: groups are as good as their best expert.
TEST_P(ExpertsTest, OnlyTheBestGroupsAreChosenFrom) {
  const RouteArgs rule{.groups = 3, .kept_groups = 2, .scale = 16};
  // Expert 3 is the third best of all, but its group is the worst.
  const std::vector<float> scores = {5, 0, 2, 3, 4, -1};
  const Choice choice = RouteBy(rule, scores, 4);
  EXPECT_EQ(choice.chosen, (std::vector<int32_t>{0, 4, 1, 5}));
  double sum = 0;
  for (const float score : scores) sum += std::exp(score - 5.0);
  EXPECT_NEAR(choice.weights[0], 16 / sum, 1e-5) << "a softmax over all experts";
  EXPECT_NEAR(choice.weights[3], 16 * std::exp(-6.0) / sum, 1e-5);
  // Of equal groups the first, and of equal experts the first.
  EXPECT_EQ(RouteBy(rule, std::vector<float>(6, 1.0f), 3).chosen, (std::vector<int32_t>{0, 1, 2}));
}

// DeepSeek-V3: the bias decides who is chosen, and no weight.
TEST_P(ExpertsTest, ABiasChangesTheChoiceButNoWeight) {
  const std::vector<float> scores = {Logit(0.5f), Logit(0.4f), Logit(0.3f)};
  const std::vector<float> none = {0, 0, 0}, bias = {0, 0, 0.15f};
  EXPECT_EQ(RouteBy({.sigmoid = true, .choice_bias = Bias(none)}, scores, 2).chosen,
            (std::vector<int32_t>{0, 1}));
  const Choice choice = RouteBy({.sigmoid = true, .choice_bias = Bias(bias)}, scores, 2);
  EXPECT_EQ(choice.chosen, (std::vector<int32_t>{0, 2}));
  EXPECT_NEAR(choice.weights[0], 0.5, 1e-6);
  EXPECT_NEAR(choice.weights[1], 0.3, 1e-6);
  const Choice scaled = RouteBy(
      {.normalise = true, .sigmoid = true, .choice_bias = Bias(bias), .scale = 2.5f}, scores, 2);
  EXPECT_NEAR(scaled.weights[0], 2.5 * 0.5 / 0.8, 1e-6);
  EXPECT_NEAR(scaled.weights[1], 2.5 * 0.3 / 0.8, 1e-6);
}

// The groups' sums of their two best: (0.9, 0.1), (0.6, 0.6), (0.8, 0.3).
TEST_P(ExpertsTest, AGroupOfSigmoidsIsAsGoodAsItsTwoBest) {
  const std::vector<float> scores = {Logit(0.9f), Logit(0.1f), Logit(0.6f),
                                     Logit(0.6f), Logit(0.3f), Logit(0.8f)};
  const std::vector<float> none(6, 0.0f);
  EXPECT_EQ(RouteBy({.sigmoid = true, .choice_bias = Bias(none), .groups = 3, .kept_groups = 2},
                    scores, 3)
                .chosen,
            (std::vector<int32_t>{5, 2, 3}));
}

// Biased scores below zero are still better than those of a group that is left out.
TEST_P(ExpertsTest, NegativeScoresOfAKeptGroupComeBeforeThoseOfOthers) {
  const std::vector<float> scores(4, Logit(0.5f)), bias = {0.5f, -2, -0.7f, -0.7f};
  const Choice choice = RouteBy(
      {.sigmoid = true, .choice_bias = Bias(bias), .groups = 2, .kept_groups = 1}, scores, 2);
  // The sums are 1 - 1.5 and -0.2 - 0.2: the second group is kept.
  EXPECT_EQ(choice.chosen, (std::vector<int32_t>{2, 3}));
  const std::vector<float> worse = {0.5f, -1, -0.7f, -0.7f};  // 1 - 0.5
  EXPECT_EQ(RouteBy({.sigmoid = true, .choice_bias = Bias(worse), .groups = 2, .kept_groups = 1},
                    scores, 2)
                .chosen,
            (std::vector<int32_t>{0, 1}));
}

TEST_P(ExpertsTest, AsManyAsThereAre) {
  const std::vector<float> scores = {-0.0f, 1e-42f, 3, -40}, none(4, 0.0f);
  const Choice all = RouteBy({.normalise = true,
                              .sigmoid = true,
                              .choice_bias = Bias(none),
                              .groups = 2,
                              .kept_groups = 2},
                             scores, 4);
  EXPECT_EQ(all.chosen, (std::vector<int32_t>{2, 0, 1, 3}));
  EXPECT_NEAR(std::accumulate(all.weights.begin(), all.weights.end(), 0.0), 1, 1e-6);
  EXPECT_NEAR(all.weights[0] / all.weights[1], Sigmoid(3) / 0.5, 1e-5);
  const Choice equal = RouteBy({.sigmoid = true}, std::vector<float>(5, 0.3f), 3);
  EXPECT_EQ(equal.chosen, (std::vector<int32_t>{0, 1, 2}));
}

TEST_P(ExpertsTest, ARowOfGroupsIsTheSameInEveryBatch) {
  constexpr int64_t kRows = 70, kHidden = 90, kExperts = 32, kPerToken = 6;
  RandomData random(9);
  const auto input = random.Floats(kRows * kHidden), router = random.Floats(kExperts * kHidden);
  const auto bias = random.Floats(kExperts, 0.2f);
  ThreadPool pool(3);
  const auto route = [&](const Exec& exec, int64_t first, int64_t rows) {
    std::vector<float> scores(static_cast<size_t>(rows * kExperts));
    Choice choice{.chosen = std::vector<int32_t>(static_cast<size_t>(rows * kPerToken)),
                  .weights = std::vector<float>(static_cast<size_t>(rows * kPerToken))};
    Route(exec, {.input = {input.data() + first * kHidden, {rows, kHidden}},
                 .router = {router.data(), {kExperts, kHidden}},
                 .normalise = true,
                 .sigmoid = true,
                 .choice_bias = Bias(bias),
                 .groups = 8,
                 .kept_groups = 4,
                 .scale = 2.5f,
                 .scores = {scores.data(), {rows, kExperts}},
                 .chosen = {choice.chosen.data(), {rows, kPerToken}},
                 .weights = {choice.weights.data(), {rows, kPerToken}}});
    return choice;
  };
  const Choice whole = route({.threads = &pool}, 0, kRows);
  for (int64_t row = 0; row < kRows; ++row) {
    const auto first = row * kPerToken, last = first + kPerToken;
    EXPECT_EQ(route({}, row, 1),
              (Choice{{whole.chosen.begin() + first, whole.chosen.begin() + last},
                      {whole.weights.begin() + first, whole.weights.begin() + last}}));
  }
}

TEST_P(ExpertsTest, ARowOfNansStillChoosesDifferentExperts) {
  const float nan = std::numeric_limits<float>::quiet_NaN();
  EXPECT_EQ(RouteScores({nan, nan, nan}, 2, true).chosen, (std::vector<int32_t>{0, 1}));
}

TEST_P(ExpertsTest, ARowIsTheSameInEveryBatchAndWithEveryThreadCount) {
  constexpr int64_t kRows = 70, kHidden = 90, kExperts = 37, kPerToken = 5;
  RandomData random(7);
  const auto input = random.Floats(kRows * kHidden), router = random.Floats(kExperts * kHidden);
  ThreadPool pool(3);
  const Choice whole = RouteRows({.threads = &pool}, input, router, kHidden, kPerToken, true);
  for (int64_t row = 0; row < kRows; ++row) {
    const std::vector<float> one(input.begin() + row * kHidden,
                                 input.begin() + (row + 1) * kHidden);
    const Choice alone = RouteRows({}, one, router, kHidden, kPerToken, true);
    const auto first = row * kPerToken, last = first + kPerToken;
    EXPECT_EQ(alone.chosen,
              std::vector<int32_t>(whole.chosen.begin() + first, whole.chosen.begin() + last));
    EXPECT_EQ(alone.weights,
              std::vector<float>(whole.weights.begin() + first, whole.weights.begin() + last));
  }
}

TEST_P(ExpertsTest, ScoresMatchTheOracle) {
  RandomData random(8);
  for (const int64_t hidden : {1, 7, 16, 33, 600}) {
    const auto x = random.Floats(3 * hidden), y = random.Floats(40 * hidden);
    std::vector<float> got(3 * 40);
    ScoreRows({}, {.input = {x.data(), {3, hidden}},
                   .vectors = {y.data(), {40, hidden}},
                   .output = {got.data(), {3, 40}}});
    for (int64_t t = 0; t < 3; ++t) {
      for (int64_t e = 0; e < 40; ++e) {
        const double want = std::inner_product(x.begin() + t * hidden, x.begin() + (t + 1) * hidden,
                                               y.begin() + e * hidden, 0.0);
        EXPECT_NEAR(got[static_cast<size_t>(t * 40 + e)], want, 1e-4) << hidden;
      }
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Isas, ExpertsTest, testing::ValuesIn(SupportedIsas()), TestName);

}  // namespace
}  // namespace penstock
