#include "kvstore/cache/passed_blocks.h"

#include <gtest/gtest.h>

namespace penstock {
namespace {

KvLayout Layout(int32_t window) {
  return {.layers = 1, .kv_heads = 1, .head_dim = 8, .block_tokens = 16, .window = window};
}

// A token at p sees p - window + 1 to p.
TEST(KvLayoutWindow, TheFirstBlockIsTheOneOfTheFirstSeenToken) {
  for (const int32_t window : {2, 15, 16, 17, 100}) {
    for (int64_t position = 1; position < 300; ++position) {
      const int64_t first_seen = std::max<int64_t>(0, position - window + 1);
      const int64_t first = Layout(window).FirstBlock(position);
      EXPECT_LE(first * 16, first_seen);
      EXPECT_GT((first + 1) * 16, first_seen);
      EXPECT_LT(first, Layout(window).BlocksFor(position));
    }
  }
  EXPECT_EQ(Layout(0).FirstBlock(1000), 0);
  EXPECT_EQ(Layout(1).FirstBlock(16), 0) << "a sequence has a block at least";
}

TEST(KvLayoutWindow, BlocksAtOnceAreEnoughForEveryStep) {
  for (const int32_t window : {1, 16, 33, 100}) {
    const KvLayout layout = Layout(window);
    for (const int64_t step : {1, 16, 50}) {
      int64_t most = 0;
      for (int64_t position = 0; position + step <= 1000; ++position) {
        most = std::max(most, layout.BlocksFor(position + step) - layout.FirstBlock(position));
      }
      EXPECT_EQ(layout.BlocksAtOnce(1000, step), most) << window << " " << step;
    }
    EXPECT_EQ(layout.BlocksAtOnce(15, 1), 1);
  }
  EXPECT_EQ(Layout(0).BlocksAtOnce(1000, 1), 63);
}

TEST(KvLayoutWindow, WorkersOfDifferentWindowsDoNotPair) {
  EXPECT_NE(Layout(0).Fingerprint(), Layout(100).Fingerprint());
  EXPECT_NE(Layout(99).Fingerprint(), Layout(100).Fingerprint());
}

TEST(PassedBlocks, LeaveTheSequenceAndTheTableNamesOneThatStays) {
  const auto pool = *BlockPool::Create(Layout(32), 20);
  BlockCredit credit = *pool->Reserve(20);
  std::vector<BlockRef> blocks = credit.Take(20);
  std::vector<uint32_t> table;
  for (const BlockRef& block : blocks) table.push_back(block.id());
  EXPECT_EQ(TakePassed(blocks, table, 3).size(), 3u);
  EXPECT_EQ(CountPassed(blocks), 3u);
  EXPECT_EQ(pool->blocks_free(), 3);
  const std::vector<BlockRef> passed = TakePassed(blocks, table, 12);
  EXPECT_EQ(passed.size(), 9u);
  EXPECT_EQ(pool->blocks_free(), 3);
  for (size_t i = 12 - 8; i < 12; ++i) EXPECT_EQ(table[i], blocks[12].id());
  for (size_t i = 12; i < 20; ++i) EXPECT_EQ(table[i], blocks[i].id());
  EXPECT_EQ(pool->Share(blocks).size(), 20u);
}

}  // namespace
}  // namespace penstock
