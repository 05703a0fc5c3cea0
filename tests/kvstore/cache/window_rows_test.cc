#include "kvstore/cache/window_rows.h"

#include <gtest/gtest.h>

#include <random>
#include <set>

namespace penstock {
namespace {

TEST(WindowRows, ABlockKeepsItsRowUntilItIsNeededElsewhere) {
  WindowRows rows(10, 2);
  EXPECT_FALSE(rows.Has(4));
  rows.Hold(4);
  EXPECT_TRUE(rows.Has(4));
  EXPECT_EQ(rows.held(), 1);
  rows.Drop(4);
  EXPECT_TRUE(rows.Has(4)) << "look-ups find it";
  EXPECT_EQ(rows.idle(), 1);
  rows.Hold(5);
  EXPECT_TRUE(rows.Has(4)) << "there was a free row";
  rows.Hold(6);
  EXPECT_FALSE(rows.Has(4)) << "its row was needed";
  EXPECT_EQ(rows.rows()[4], rows.no_row());
  EXPECT_EQ(rows.held(), 2);
}

TEST(WindowRows, TheLongestIdleGoesFirst) {
  WindowRows rows(10, 3);
  for (const uint32_t block : {1, 2, 3}) rows.Hold(block);
  for (const uint32_t block : {2, 1, 3}) rows.Drop(block);
  rows.Hold(2);
  rows.Drop(2);  // now the last
  rows.Hold(7);
  EXPECT_FALSE(rows.Has(1));
  rows.Hold(8);
  EXPECT_FALSE(rows.Has(3));
  EXPECT_TRUE(rows.Has(2));
}

TEST(WindowRows, ThosePassedGoBeforeThoseThatASequenceHeldToItsEnd) {
  WindowRows rows(10, 4);
  for (const uint32_t block : {1, 2, 3, 4}) rows.Hold(block);
  rows.Drop(1);
  rows.Want(2);
  for (const uint32_t block : {2, 3, 4}) rows.Drop(block, /*passed=*/true);
  rows.Hold(5);
  EXPECT_FALSE(rows.Has(4));
  rows.Hold(6);
  EXPECT_FALSE(rows.Has(3));
  rows.Hold(7);
  EXPECT_FALSE(rows.Has(1));
  EXPECT_TRUE(rows.Has(2)) << "a look-up wanted it";
  rows.Free(2);
  EXPECT_FALSE(rows.wanted(2));
  EXPECT_EQ(rows.free(), 1);
}

TEST(WindowRows, HoldersShareARow) {
  WindowRows rows(4, 1);
  rows.Hold(2);
  rows.Hold(2);
  rows.Drop(2);
  EXPECT_EQ(rows.idle(), 0);
  rows.Drop(2);
  EXPECT_EQ(rows.idle(), 1);
  rows.Forget(2);
  EXPECT_EQ(rows.free(), 1);
  EXPECT_FALSE(rows.Has(2));
  rows.Forget(2);  // without a row: nothing to do
  EXPECT_EQ(rows.free(), 1);
}

TEST(WindowRows, QuotasAreAtMostAllRows) {
  WindowRows rows(10, 4);
  ASSERT_TRUE(rows.CanReserve(4));
  rows.Reserve(3);
  EXPECT_FALSE(rows.CanReserve(2));
  EXPECT_TRUE(rows.CanReserve(1));
  rows.Return(3);
  EXPECT_TRUE(rows.CanReserve(4));
}

TEST(WindowRows, AsManyRowsAsBlocksAreNeverShort) {
  WindowRows rows(3, 3);
  EXPECT_TRUE(rows.unlimited());
  EXPECT_TRUE(rows.CanReserve(100));
  for (const uint32_t block : {0, 1, 2}) rows.Hold(block);
  for (const uint32_t block : {0, 1, 2}) EXPECT_TRUE(rows.Has(block));
}

TEST(WindowRows, NeedARowToBeFreeOrIdle) {
  WindowRows rows(3, 1);
  rows.Hold(0);
  EXPECT_DEATH(rows.Hold(1), "more rows than their quotas");
}

// No two blocks have the same row, and the counts are right, whatever happens.
TEST(WindowRows, NoRowHasTwoBlocks) {
  constexpr uint32_t kBlocks = 40;
  constexpr int64_t kRows = 9;
  std::mt19937 random(7);
  WindowRows rows(kBlocks, kRows);
  std::multiset<uint32_t> held;
  for (int step = 0; step < 20000; ++step) {
    const uint32_t block = random() % kBlocks;
    const auto distinct = std::set<uint32_t>(held.begin(), held.end());
    if (random() % 2 == 0) {
      if (distinct.contains(block) || std::ssize(distinct) < kRows) {
        rows.Hold(block);
        held.insert(block);
      }
    } else if (held.contains(block)) {
      rows.Drop(block);
      held.erase(held.find(block));
    } else if (random() % 4 == 0) {
      rows.Forget(block);
    }
    std::set<uint32_t> used;
    for (uint32_t other = 0; other < kBlocks; ++other) {
      if (rows.Has(other)) {
        ASSERT_TRUE(used.insert(rows.rows()[other]).second);
      }
      if (held.contains(other)) {
        ASSERT_TRUE(rows.Has(other));
      }
    }
    ASSERT_EQ(rows.held(), std::ssize(std::set<uint32_t>(held.begin(), held.end())));
    ASSERT_EQ(rows.idle() + rows.held(), std::ssize(used));
  }
}

}  // namespace
}  // namespace penstock
