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
