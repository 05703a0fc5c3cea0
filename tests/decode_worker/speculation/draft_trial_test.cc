// The draft model's KV is computed for one sequence at a time until its acceptance is known.

#include "decode_worker/speculation/draft_trial.h"

#include <gtest/gtest.h>

#include "decode_worker/speculation/draft_lengths.h"
#include "decode_worker/speculation/guess_record.h"

namespace penstock {
namespace {

using Order = std::vector<size_t>;

DraftWish Pending(double cost) { return {.cost = cost}; }
DraftWish Begun(double cost) { return {.cost = cost, .begun = true}; }
DraftWish Ready() { return {.begun = true, .ready = true}; }

DraftTrial After(int steps) {
  DraftTrial trial;
  for (int i = 0; i < steps; ++i) trial.EndStep(false);
  return trial;
}

TEST(DraftTrial, AKnownAcceptanceLetsAllBeginInTheirOrder) {
  const std::vector<DraftWish> wishes = {Pending(50), Ready(), Pending(2), Begun(3)};
  EXPECT_EQ(DraftTrial().Order(wishes, true), (Order{0, 2, 3}));
}

TEST(DraftTrial, TheFirstOneIsTheCheapestAndWaitsUntilStepsHaveEarnedIt) {
  const std::vector<DraftWish> wishes = {Pending(5), Pending(2), Pending(3)};
  EXPECT_EQ(After(63).Order(wishes, false), Order{});
  EXPECT_EQ(After(64).Order(wishes, false), Order{1});
  EXPECT_EQ(After(100).Order(wishes, false), (Order{1, 2}));
}

TEST(DraftTrial, OthersWaitWhileOneIsOnTrial) {
  const DraftTrial trial = After(10'000);
  EXPECT_EQ(trial.Order(std::vector{Pending(1), Begun(5)}, false), Order{1});
  EXPECT_EQ(trial.Order(std::vector{Pending(1), Ready()}, false), Order{});
  EXPECT_EQ(trial.Order({}, false), Order{});
}

TEST(DraftTrial, TheNextTrialIsEarnedAnew) {
  DraftTrial trial = After(64);
  trial.Spend(Pending(2));
  trial.Spend(Begun(1));  // paid for when it began
  EXPECT_EQ(trial.Order(std::vector{Pending(0.1)}, false), Order{});
  for (int i = 0; i < 32; ++i) trial.EndStep(false);
  EXPECT_EQ(trial.Order(std::vector{Pending(1)}, false), Order{0});
  trial.EndStep(true);
  EXPECT_EQ(trial.Order(std::vector{Pending(0.1)}, false), Order{});
}

// The guesses of a sequence that are checked, and all wrong, before they cease to pay.
int WrongGuesses(SharedAcceptance& shared) {
  StepCost target, model;
  for (int i = 0; i < 100; ++i) target.Add(1 + i % 4, 1 + 0.07 * (i % 4));
  for (int i = 0; i < 100; ++i) model.Add(1, 0.09);
  GuessRecord record;
  for (int checked = 0;; ++checked) {
    const DraftOffers offer{.ngram = {},
                            .model = {.tokens = 1, .acceptance = record.acceptance(shared.rate())}};
    if (ChooseDrafts({&offer, 1}, {.target = target, .model = &model}, 64).choices[0].tokens == 0) {
      return checked;
    }
    record.Begin();
    record.Add(0);
    record.Observe(1);
    shared.Count(record.TakeCompared());
  }
}

TEST(SharedAcceptance, ADrafterThatBecomesBadIsNotBelievedForLong) {
  SharedAcceptance fresh, good;
  EXPECT_FALSE(fresh.known());
  for (int i = 0; i < 500; ++i) good.Count({.all = 10, .right = 7});
  EXPECT_TRUE(good.known());
  EXPECT_LE(WrongGuesses(fresh), 12);
  EXPECT_LE(WrongGuesses(good), 32);
}

TEST(SharedAcceptance, ALowRateFadesUntilNothingIsKnown) {
  SharedAcceptance shared;
  shared.Count({.all = 40, .right = 2});
  EXPECT_TRUE(shared.known());
  for (int i = 0; i < 2000; ++i) shared.Skip();
  EXPECT_FALSE(shared.known());
}

}  // namespace
}  // namespace penstock
