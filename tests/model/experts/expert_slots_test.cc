// Which expert leaves memory.

#include "model/experts/expert_slots.h"

#include <gtest/gtest.h>

#include <random>
#include <set>

namespace penstock {
namespace {

// One layer that needs the given experts, each chosen by as many tokens, and has them all read.
// Returns those that were not in memory.
std::vector<int32_t> Use(ExpertSlots& slots, const std::vector<int32_t>& experts,
                         int64_t tokens = 1) {
  std::vector<ExpertUse> uses;
  for (const int32_t expert : experts) uses.push_back({.expert = expert, .tokens = tokens});
  slots.Begin(uses, tokens);
  std::vector<int32_t> missed;
  for (const int32_t expert : experts) {
    if (!slots.SlotOf(expert)) {
      missed.push_back(expert);
      slots.Unlock(*slots.TakeNow(expert));
    }
    slots.Release(expert);
  }
  return missed;
}

TEST(ExpertSlotsTest, EmptySlotsComeFirst) {
  ExpertSlots slots(10, 3, 100);
  EXPECT_EQ(Use(slots, {4, 7, 9}), (std::vector<int32_t>{4, 7, 9}));
  EXPECT_EQ(Use(slots, {4, 7, 9}), (std::vector<int32_t>{}));
  EXPECT_EQ((std::set<int32_t>{*slots.SlotOf(4), *slots.SlotOf(7), *slots.SlotOf(9)}),
            (std::set<int32_t>{0, 1, 2}));
}

TEST(ExpertSlotsTest, TheLeastUsedLeaves) {
  ExpertSlots slots(10, 3, 100);
  Use(slots, {1, 2});
  Use(slots, {1, 2});
  Use(slots, {3});
  EXPECT_EQ(Use(slots, {4}), (std::vector<int32_t>{4}));  // in place of 3, though 1 is older
  EXPECT_TRUE(slots.SlotOf(1));
  EXPECT_TRUE(slots.SlotOf(2));
  EXPECT_FALSE(slots.SlotOf(3));
}

TEST(ExpertSlotsTest, OfEquallyUsedOnesTheLeastRecentLeaves) {
  ExpertSlots slots(10, 2, 100);
  Use(slots, {1});
  Use(slots, {2});
  Use(slots, {3});
  EXPECT_FALSE(slots.SlotOf(1));
  EXPECT_TRUE(slots.SlotOf(2));
}

TEST(ExpertSlotsTest, OldUsesCountLess) {
  ExpertSlots slots(10, 2, 2);
  for (int i = 0; i < 20; ++i) Use(slots, {1});
  for (int i = 0; i < 10; ++i) Use(slots, {9});  // five half-lives
  Use(slots, {2});
  EXPECT_FALSE(slots.SlotOf(1));
  EXPECT_TRUE(slots.SlotOf(9));
}

TEST(ExpertSlotsTest, AnExpertThatManyTokensChooseIsHotter) {
  ExpertSlots slots(10, 2, 1000);
  Use(slots, {1}, 30);
  Use(slots, {2}, 5);
  Use(slots, {2}, 5);
  Use(slots, {3});
  EXPECT_TRUE(slots.SlotOf(1));
  EXPECT_FALSE(slots.SlotOf(2));
}

// Counts outlive the stay in memory, so that one turn brings a hot expert back for long.
TEST(ExpertSlotsTest, AnExpertThatComesBackKeepsItsCount) {
  ExpertSlots slots(10, 2, 1000);
  for (int i = 0; i < 3; ++i) Use(slots, {1});
  for (int i = 0; i < 5; ++i) Use(slots, {2, 3});
  EXPECT_FALSE(slots.SlotOf(1));
  for (int i = 0; i < 4; ++i) Use(slots, {1});  // 7 uses now
  EXPECT_TRUE(slots.SlotOf(1));
  Use(slots, {4});
  EXPECT_TRUE(slots.SlotOf(1));
}

TEST(ExpertSlotsTest, ReadsAheadLeaveWhatTheLayerNeeds) {
  ExpertSlots slots(10, 2, 100);
  Use(slots, {1, 2});
  const std::vector<ExpertUse> uses = {{.expert = 0, .tokens = 1}, {.expert = 2, .tokens = 1}};
  slots.Begin(uses, 1);
  const auto slot = slots.TakeAhead(0);
  ASSERT_TRUE(slot);  // that of 1
  EXPECT_TRUE(slots.SlotOf(2));
  EXPECT_FALSE(slots.TakeAhead(5));  // one is locked, the other needed
  slots.Unlock(*slot);
  slots.Release(0);
  EXPECT_TRUE(slots.TakeAhead(5));
  EXPECT_TRUE(slots.SlotOf(2));
}

// An expert whose turn it is may take the place of the one whose turn is last.
TEST(ExpertSlotsTest, TheTurnDecidesWhereAllAreNeeded) {
  ExpertSlots slots(10, 2, 100);
  for (int i = 0; i < 9; ++i) Use(slots, {3});
  Use(slots, {1, 3});
  const std::vector<ExpertUse> uses = {
      {.expert = 0, .tokens = 1}, {.expert = 1, .tokens = 1}, {.expert = 3, .tokens = 1}};
  slots.Begin(uses, 1);
  EXPECT_FALSE(slots.TakeAhead(0));
  EXPECT_TRUE(slots.TakeNow(0));
  EXPECT_TRUE(slots.SlotOf(1));
  EXPECT_FALSE(slots.SlotOf(3));  // though it is the hottest
}

TEST(ExpertSlotsTest, LockedSlotsStay) {
  ExpertSlots slots(10, 1, 100);
  slots.Begin(std::vector<ExpertUse>{{.expert = 5, .tokens = 1}}, 1);
  const auto slot = slots.TakeNow(5);
  slots.Begin(std::vector<ExpertUse>{{.expert = 6, .tokens = 1}}, 1);
  EXPECT_FALSE(slots.TakeNow(6));
  slots.Clear(*slot);  // the read has failed
  EXPECT_FALSE(slots.SlotOf(5));
  EXPECT_TRUE(slots.TakeNow(6));
}

// Of 64 experts, chosen by Zipf's law: the cache of 16 has as many hits as one with the 16 most
// frequent ones would have, within a few percent, and far more than 16 of 64.
TEST(ExpertSlotsTest, SkewedChoicesHit) {
  ExpertSlots slots(64, 16, 1024);
  std::mt19937_64 random(3);
  std::vector<double> weights(64);
  for (size_t e = 0; e < weights.size(); ++e) weights[e] = 1.0 / static_cast<double>(e + 1);
  std::discrete_distribution<int32_t> choose(weights.begin(), weights.end());
  int64_t missed = 0, best_missed = 0;
  for (int i = 0; i < 20000; ++i) {
    const int32_t expert = choose(random);
    const size_t count = Use(slots, {expert}).size();
    if (i < 5000) continue;
    missed += static_cast<int64_t>(count);
    best_missed += expert >= 16 ? 1 : 0;
  }
  EXPECT_LT(best_missed, 15000 * 0.32);
  EXPECT_LT(static_cast<double>(missed), 1.1 * static_cast<double>(best_missed));
}

}  // namespace
}  // namespace penstock
