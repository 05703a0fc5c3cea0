// How many guesses a step checks.

#include "decode_worker/speculation/draft_lengths.h"

#include <gtest/gtest.h>

#include <numeric>

namespace penstock {
namespace {

// Steps whose time is `fixed` and `row` for each row.
StepCost CostOf(double fixed, double row, int64_t first = 1, int64_t last = 9) {
  StepCost cost;
  for (int i = 0; i < 200; ++i) {
    const int64_t rows = first + i % (last - first + 1);
    cost.Add(rows, fixed + row * static_cast<double>(rows));
  }
  return cost;
}

int32_t Sum(const std::vector<int32_t>& lengths) {
  return std::accumulate(lengths.begin(), lengths.end(), 0);
}

TEST(StepCost, IsTheLineThroughTheSteps) {
  const StepCost cost = CostOf(20, 0.5);
  EXPECT_NEAR(cost.SecondsPerRow(), 0.5, 0.05);
  EXPECT_NEAR(cost.Seconds(1), 20.5, 0.5);
  EXPECT_NEAR(cost.Seconds(20), 30, 1);
}

TEST(StepCost, FollowsAMachineThatBecomesSlower) {
  StepCost cost = CostOf(20, 0.5);
  for (int i = 0; i < 300; ++i) cost.Add(1 + i % 8, 60 + 3.0 * (1 + i % 8));
  EXPECT_NEAR(cost.SecondsPerRow(), 3, 0.3);
  EXPECT_NEAR(cost.Seconds(4), 72, 3);
}

TEST(StepCost, OneLongStepChangesLittle) {
  StepCost cost = CostOf(20, 0.5);
  cost.Add(9, 2000);
  EXPECT_LT(cost.SecondsPerRow(), 0.8);
}

// Until rows differ, a row is assumed to cost more of a step the more rows there are already.
TEST(StepCost, HasASlopeBeforeRowsDiffer) {
  StepCost one, many;
  for (int i = 0; i < 10; ++i) one.Add(1, 30);
  for (int i = 0; i < 10; ++i) many.Add(16, 60);
  EXPECT_NEAR(one.SecondsPerRow(), 30.0 / 17, 0.01);
  EXPECT_NEAR(many.SecondsPerRow(), 60.0 / 32, 0.01);
  StepCost still;
  still.Add(4, 0);
  EXPECT_GT(still.Seconds(1), 0);
}

TEST(DraftLengths, ALikelyGuessIsCheckedToItsEnd) {
  const DraftOffer offer{.tokens = 8, .acceptance = 0.95};
  EXPECT_EQ(ChooseDraftLengths({&offer, 1}, CostOf(20, 0.5), 64), std::vector<int32_t>{8});
}

TEST(DraftLengths, AnUnlikelyOneIsNot) {
  const DraftOffer offer{.tokens = 8, .acceptance = 0.02};
  EXPECT_EQ(ChooseDraftLengths({&offer, 1}, CostOf(20, 1), 64), std::vector<int32_t>{0});
}

// The chosen length is the one with the most expected tokens a second, but for the margin.
TEST(DraftLengths, IsNeverWorseThanNone) {
  for (const double row : {0.1, 0.5, 2.0, 8.0}) {
    const StepCost cost = CostOf(20, row);
    for (double rate = 0.05; rate < 1; rate += 0.05) {
      const DraftOffer offer{.tokens = 16, .acceptance = rate};
      const int32_t length = ChooseDraftLengths({&offer, 1}, cost, 64)[0];
      double tokens = 1, term = 1;
      for (int32_t i = 0; i < length; ++i) tokens += term *= rate;
      EXPECT_GE(tokens * cost.Seconds(1), cost.Seconds(1 + length)) << row << ' ' << rate;
    }
  }
}

TEST(DraftLengths, RowsGoToTheLikeliest) {
  std::vector<DraftOffer> offers(4, {.tokens = 8, .acceptance = 0.3});
  offers[2].acceptance = 0.97;
  const std::vector<int32_t> lengths = ChooseDraftLengths(offers, CostOf(20, 0.5), 6);
  EXPECT_EQ(lengths, std::vector<int32_t>({0, 0, 6, 0}));
  offers[2].tokens = 0;
  EXPECT_EQ(ChooseDraftLengths(offers, CostOf(20, 0.5), 6)[2], 0);
}

TEST(DraftLengths, ALargeBatchHasNone) {
  const std::vector<DraftOffer> offers(32, {.tokens = 8, .acceptance = 0.6});
  const StepCost compute_bound = CostOf(2, 2, 28, 40);
  EXPECT_EQ(Sum(ChooseDraftLengths(offers, compute_bound, 64)), 0);
  EXPECT_LE(Sum(ChooseDraftLengths(offers, CostOf(100, 0.01, 28, 40), 64)), 64);
  EXPECT_TRUE(ChooseDraftLengths({}, compute_bound, 64).empty());
}

}  // namespace
}  // namespace penstock
