// How many guesses a step checks.

#include "decode_worker/speculation/draft_lengths.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>
#include <random>
#include <set>
#include <utility>

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

// The lengths of guesses that no draft model makes.
std::vector<int32_t> Lengths(const std::vector<DraftOffer>& offers, const StepCost& cost,
                             int32_t rows_max) {
  std::vector<DraftOffers> all;
  for (const DraftOffer& offer : offers) all.push_back({.ngram = offer, .model = {}});
  std::vector<int32_t> lengths;
  for (const DraftChoice& choice : ChooseDrafts(all, {.target = cost}, rows_max).choices) {
    lengths.push_back(choice.tokens);
  }
  return lengths;
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
  EXPECT_EQ(Lengths({offer}, CostOf(20, 0.5), 64), std::vector<int32_t>{8});
}

TEST(DraftLengths, AnUnlikelyOneIsNot) {
  const DraftOffer offer{.tokens = 8, .acceptance = 0.02};
  EXPECT_EQ(Lengths({offer}, CostOf(20, 1), 64), std::vector<int32_t>{0});
}

// The chosen length is the one with the most expected tokens a second, but for the margin.
TEST(DraftLengths, IsNeverWorseThanNone) {
  for (const double row : {0.1, 0.5, 2.0, 8.0}) {
    const StepCost cost = CostOf(20, row);
    for (double rate = 0.05; rate < 1; rate += 0.05) {
      const DraftOffer offer{.tokens = 16, .acceptance = rate};
      const int32_t length = Lengths({offer}, cost, 64)[0];
      double tokens = 1, term = 1;
      for (int32_t i = 0; i < length; ++i) tokens += term *= rate;
      EXPECT_GE(tokens * cost.Seconds(1), cost.Seconds(1 + length)) << row << ' ' << rate;
    }
  }
}

TEST(DraftLengths, RowsGoToTheLikeliest) {
  std::vector<DraftOffer> offers(4, {.tokens = 8, .acceptance = 0.3});
  offers[2].acceptance = 0.97;
  const std::vector<int32_t> lengths = Lengths(offers, CostOf(20, 0.5), 6);
  EXPECT_EQ(lengths, std::vector<int32_t>({0, 0, 6, 0}));
  offers[2].tokens = 0;
  EXPECT_EQ(Lengths(offers, CostOf(20, 0.5), 6)[2], 0);
}

TEST(DraftLengths, ALargeBatchHasNone) {
  const std::vector<DraftOffer> offers(32, {.tokens = 8, .acceptance = 0.6});
  const StepCost compute_bound = CostOf(2, 2, 28, 40);
  EXPECT_EQ(Sum(Lengths(offers, compute_bound, 64)), 0);
  EXPECT_LE(Sum(Lengths(offers, CostOf(100, 0.01, 28, 40), 64)), 64);
  EXPECT_TRUE(Lengths({}, compute_bound, 64).empty());
}

// Sequences of which a draft model guesses 8 tokens.
std::vector<DraftOffers> ByModel(size_t count, double acceptance) {
  return {count, {.ngram = {}, .model = {.tokens = 8, .acceptance = acceptance}}};
}

int32_t Longest(const DraftPlan& plan) {
  return std::ranges::max(plan.choices, {}, &DraftChoice::tokens).tokens;
}

TEST(DraftLengths, ADraftModelsStepCountsAsMuchAsARow) {
  const StepCost target = CostOf(20, 0.5), cheap = CostOf(0.2, 0.01), dear = CostOf(2, 0.1);
  const auto offers = ByModel(1, 0.7);
  const int32_t most = Longest(ChooseDrafts(offers, {.target = target, .model = &cheap}, 64));
  const int32_t fewer = Longest(ChooseDrafts(offers, {.target = target, .model = &dear}, 64));
  EXPECT_GT(most, fewer);
  EXPECT_GT(fewer, 1);
  const StepCost as_dear_as_the_target = CostOf(20, 0.5);
  EXPECT_EQ(Longest(ChooseDrafts(offers, {.target = target, .model = &as_dear_as_the_target}, 64)),
            0);
}

// With 70 % of the guesses right, a draft of a tenth and rows of a fourteenth, three or four
// guesses take 0.6 of the time.
TEST(DraftLengths, SaysHowMuchTimeIsSaved) {
  const StepCost target = CostOf(0.927, 0.073), model = CostOf(0.0927, 0.0073);
  const DraftPlan plan = ChooseDrafts(ByModel(1, 0.7), {.target = target, .model = &model}, 64);
  EXPECT_NEAR(plan.saved, 0.4, 0.02);
  EXPECT_EQ(ChooseDrafts(ByModel(1, 0.05), {.target = target, .model = &model}, 64).saved, 0);
}

// One sequence alone would not pay for the step of the draft model.
TEST(DraftLengths, SequencesShareTheDraftModelsStep) {
  const StepCost target = CostOf(20, 0.5), model = CostOf(4, 0.01);
  const DraftCosts costs{.target = target, .model = &model};
  std::vector<DraftOffers> offers = ByModel(8, 0.5);
  EXPECT_GT(Longest(ChooseDrafts(offers, costs, 64)), 0);
  for (size_t i = 1; i < offers.size(); ++i) offers[i] = {};
  EXPECT_EQ(Longest(ChooseDrafts(offers, costs, 64)), 0);
}

TEST(DraftLengths, TheBetterGuessIsChecked) {
  const StepCost target = CostOf(20, 0.5), model = CostOf(0.4, 0.01), dear = CostOf(30, 0.5);
  std::vector<DraftOffers> offers(3);
  offers[0] = {.ngram = {.tokens = 8, .acceptance = 0.9},
               .model = {.tokens = 8, .acceptance = 0.7}};
  offers[1] = {.ngram = {.tokens = 8, .acceptance = 0.3},
               .model = {.tokens = 8, .acceptance = 0.7}};
  offers[2] = {.ngram = {.tokens = 8, .acceptance = 0.4}, .model = {}};
  const auto plan = ChooseDrafts(offers, {.target = target, .model = &model}, 64);
  EXPECT_EQ(plan.choices[0].drafter, Drafter::kNgram);
  EXPECT_EQ(plan.choices[1].drafter, Drafter::kModel);
  EXPECT_GT(plan.choices[1].tokens, 1);
  EXPECT_EQ(plan.choices[2].drafter, Drafter::kNgram);
  // Where the draft model does not pay, the other guess is still checked.
  const auto without = ChooseDrafts(offers, {.target = target, .model = &dear}, 64);
  EXPECT_EQ(without.choices[1].drafter, Drafter::kNgram);
  EXPECT_GT(without.choices[1].tokens, 0);
}

TEST(RandomDraftsTest, StayWithinTheOffersAndTheRows) {
  const std::vector<DraftOffers> offers = {
      {.ngram = {.tokens = 3}},
      {.model = {.tokens = 5}},
      {.ngram = {.tokens = 2}, .model = {}, .mtp = {.tokens = 4}},
      {}};
  std::mt19937 random(7);
  std::set<std::pair<Drafter, int32_t>> seen;  // of the sequence with two offers
  for (int i = 0; i < 500; ++i) {
    const DraftPlan plan = RandomDrafts(offers, /*rows_max=*/9, random);
    ASSERT_EQ(plan.choices.size(), offers.size());
    int32_t rows = 0;
    for (size_t s = 0; s < offers.size(); ++s) {
      const auto& [drafter, tokens] = plan.choices[s];
      EXPECT_LE(tokens, drafter == Drafter::kNgram   ? offers[s].ngram.tokens
                        : drafter == Drafter::kModel ? offers[s].model.tokens
                                                     : offers[s].mtp.tokens);
      rows += tokens;
    }
    EXPECT_LE(rows, 9);
    seen.emplace(plan.choices[2].drafter, plan.choices[2].tokens);
  }
  EXPECT_EQ(seen.size(), 3u + 5u);  // none to all tokens of either
}

// As one of the draft model, a guess of the layer for multi-token prediction pays for its step.
TEST(DraftLengths, AGuessOfTheMtpLayerPaysForItsStep) {
  const StepCost target = CostOf(20, 0.5), mtp = CostOf(0.4, 0.01), dear = CostOf(30, 0.5);
  std::vector<DraftOffers> offers(2);
  offers[0] = {.ngram = {.tokens = 8, .acceptance = 0.9},
               .model = {},
               .mtp = {.tokens = 8, .acceptance = 0.8}};
  offers[1] = {.ngram = {}, .model = {}, .mtp = {.tokens = 8, .acceptance = 0.8}};
  const auto plan = ChooseDrafts(offers, {.target = target, .mtp = &mtp}, 64);
  EXPECT_EQ(plan.choices[0].drafter, Drafter::kNgram);
  EXPECT_EQ(plan.choices[1].drafter, Drafter::kMtp);
  EXPECT_GT(plan.choices[1].tokens, 1);
  const auto without = ChooseDrafts(offers, {.target = target, .mtp = &dear}, 64);
  EXPECT_EQ(without.choices[1].tokens, 0);
  EXPECT_EQ(ChooseDrafts(offers, {.target = target}, 64).choices[1].tokens, 0);
}

}  // namespace
}  // namespace penstock
