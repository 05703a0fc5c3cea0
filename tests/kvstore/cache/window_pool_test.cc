// A pool whose layers with a window have less memory than the others
// (docs/adr/0060-window-rows.md).

#include <gtest/gtest.h>

#include "kernels/page_copier.h"
#include "kvstore/cache/block_pool.h"
#include "kvstore/cache/complete_hit.h"
#include "kvstore/cache/kv_split.h"
#include "kvstore/cache/prefix_cache.h"

namespace penstock {
namespace {

// Layers 0, 1, 3 and 4 have a window of 40 tokens. A layer of a block has 4,096 bytes.
KvLayout Layout() {
  KvLayout layout{.layers = 5, .kv_heads = 1, .head_dim = 64, .block_tokens = 16};
  layout.group.window = 40;
  for (const size_t layer : {0, 1, 3, 4}) layout.group.layers.set(layer);
  return layout;
}

BlockCredit Credit(BlockPool& pool, int64_t blocks, int64_t rows) {
  BlockCredit credit = *pool.Reserve(blocks);
  credit.SetQuota(pool.ReserveRows(rows));
  return credit;
}

TEST(WindowLayout, GroupBlocksAreThoseOfTheWindow) {
  const KvLayout layout = Layout();
  EXPECT_EQ(layout.FirstBlock(1000), 0) << "the other layers see all";
  EXPECT_EQ(layout.FirstGroupBlock(39), 0);
  EXPECT_EQ(layout.FirstGroupBlock(1000), (1000 - 39) / 16);
  for (const int64_t step : {1, 16, 50}) {
    int64_t most = 0;
    for (int64_t position = 0; position + step <= 1000; ++position) {
      most = std::max(most, layout.BlocksFor(position + step) - layout.FirstGroupBlock(position));
    }
    EXPECT_EQ(layout.RowsAtOnce(1000, step), most) << step;
  }
  KvLayout other = layout;
  other.group.layers.reset(1);
  EXPECT_NE(layout.Fingerprint(), other.Fingerprint()) << "they would send other KV";
  EXPECT_EQ(KvLayout{}.RowsAtOnce(1000, 1), 0);
}

TEST(WindowPool, LayersLieApartAndCopiesDoNotTell) {
  const auto pool = *BlockPool::Create(Layout(), 20, 3);
  EXPECT_EQ(pool->row_counts().total, 3);
  EXPECT_EQ(pool->block_bytes(), (20 * 4096 + 3 * 16384) / 20u);
  BlockCredit credit = Credit(*pool, 2, 2);
  std::vector<BlockRef> blocks = credit.Take(2);
  credit.MoveWindow(blocks, 0, 2);
  const PagedKv kv = pool->view();
  const size_t bytes = kv.layout.BlockStride();
  std::vector<std::byte> written(bytes, std::byte{7}), read(bytes);
  for (size_t i = 0; i < kv.layout.PayloadBytes(); ++i) written[i] = std::byte(i % 251);
  const uint32_t to = blocks[1].id();
  WritePages(kv, {&to, 1}, 0, bytes, written.data());
  ReadPages(kv, {&to, 1}, 0, bytes, read.data());
  EXPECT_EQ(read, written);
  // A part that begins and ends within layers.
  std::vector<std::byte> part(9000);
  ReadPages(kv, {&to, 1}, 5000, part.size(), part.data());
  EXPECT_TRUE(std::equal(part.begin(), part.end(), written.begin() + 5000));
  for (int32_t layer = 0; layer < 5; ++layer) {
    EXPECT_EQ(*kv.Layer(to, layer), written[static_cast<size_t>(layer) * 4096]);
  }
}

// The second copies of pages with a span, which lower tiers do not see.
TEST(WindowPool, FirstCopiesLieApart) {
  const KvLayout plain{.layers = 3, .kv_heads = 1, .head_dim = 64, .block_tokens = 16};
  const KvLayout layout = plain.In({.dtype = KvDtype::kI4r, .span = 64});
  for (const int64_t rows : {2, 5}) {
    const auto pool = *BlockPool::Create(layout, 5, rows);
    BlockCredit credit = Credit(*pool, 2, 1);
    std::vector<BlockRef> blocks = credit.Take(2);
    credit.HoldRow(blocks[1]);
    const PagedKv kv = pool->view(), first = kv.FirstCopies();
    EXPECT_EQ(first.layout, plain.In({.dtype = KvDtype::kI4r}));
    const uint32_t id = blocks[1].id();
    std::vector<std::byte> row(layout.RowPayloadBytes()), page(layout.PayloadBytes());
    for (size_t i = 0; i < row.size(); ++i) row[i] = std::byte(i % 251);
    std::vector<std::byte> whole(first.layout.BlockStride(), std::byte{7});
    WritePages(first, {&id, 1}, 0, whole.size(), whole.data());
    WriteRows(kv, {&id, 1}, row.data());
    ReadPages(kv, {&id, 1}, 0, page.size(), page.data());
    const auto* copy = row.data();
    for (int32_t layer = 0; layer < 6; ++layer) {
      for (size_t i = layout.BytesBefore(layer); i < layout.BytesBefore(layer + 1); ++i) {
        ASSERT_EQ(page[i], layer % 2 == 0 ? std::byte{7} : *copy++) << layer;
      }
    }
    std::vector<std::byte> read(row.size());
    ReadRows(kv, {&id, 1}, read.data());
    EXPECT_EQ(read, row);
    EXPECT_FALSE(kv.Has(blocks[0].id(), 1));
    EXPECT_TRUE(kv.Has(blocks[0].id(), 0));
  }
}

TEST(WindowPool, ABlockWithoutARowHasZerosThere) {
  const auto pool = *BlockPool::Create(Layout(), 20, 3);
  BlockCredit credit = Credit(*pool, 1, 1);
  const std::vector<BlockRef> blocks = credit.Take(1);
  const PagedKv kv = pool->view();
  std::vector<std::byte> page(kv.layout.BlockStride(), std::byte{9});
  const uint32_t id = blocks[0].id();
  WritePages(kv, {&id, 1}, 0, page.size(), page.data());
  ReadPages(kv, {&id, 1}, 0, page.size(), page.data());
  for (int32_t layer = 0; layer < 5; ++layer) {
    EXPECT_EQ(page[static_cast<size_t>(layer) * 4096], std::byte(layer == 2 ? 9 : 0));
  }
}

TEST(WindowPool, ASequenceHoldsTheRowsOfItsWindow) {
  const auto pool = *BlockPool::Create(Layout(), 20, 4);
  BlockCredit credit = Credit(*pool, 12, 4);
  std::vector<BlockRef> blocks = credit.Take(12);
  for (int64_t end = 1; end <= 12; ++end) {
    const int64_t first = std::max<int64_t>(0, end - 4);
    credit.MoveWindow(blocks, first, end);
    EXPECT_EQ(pool->row_counts().held, end - first);
    for (int64_t i = 0; i < 12; ++i) {
      EXPECT_EQ(blocks[static_cast<size_t>(i)].holds_row(), i >= first && i < end);
    }
  }
  EXPECT_FALSE(credit.HoldsNoRows());
  const std::vector<BlockRef> others = pool->Share(std::span(blocks).last(2));
  EXPECT_TRUE(others[0].holds_row());
  EXPECT_EQ(pool->row_counts().held, 4) << "shared rows count once";
  EXPECT_FALSE(blocks.back().ShareWithoutRow().holds_row());
  blocks.clear();
  EXPECT_EQ(pool->row_counts().held, 2);
}

TEST(WindowPool, QuotasEndWithTheirLastReference) {
  const auto pool = *BlockPool::Create(Layout(), 20, 4);
  BlockCredit credit = Credit(*pool, 2, 3);
  EXPECT_EQ(pool->ReserveRows(2), nullptr);
  EXPECT_EQ(pool->ReserveRows(1, /*left=*/1), nullptr);
  std::vector<BlockRef> blocks = credit.Take(2);
  credit.HoldRow(blocks[1]);
  credit = {};
  EXPECT_EQ(pool->row_counts().reserved, 3) << "a block still has a row";
  blocks.clear();
  EXPECT_EQ(pool->row_counts().reserved, 0);
  EXPECT_NE(pool->ReserveRows(4), nullptr);
}

TEST(WindowPool, ACreditGivesBlocksBackAndKeepsItsQuota) {
  const auto pool = *BlockPool::Create(Layout(), 20, 4);
  BlockCredit credit = Credit(*pool, 2, 3);
  credit.GiveBackBlocks();
  EXPECT_EQ(pool->blocks_reserved(), 0);
  EXPECT_EQ(pool->row_counts().reserved, 3);
  credit.Merge(*pool->Reserve(1));
  std::vector<BlockRef> block = credit.Take(1);
  credit.HoldRow(block[0]);
  EXPECT_TRUE(block[0].holds_row());
}

TEST(WindowPool, CopiesToLowerTiersKeepARowIfAQuotaHasOne) {
  const auto pool = *BlockPool::Create(Layout(), 20, 2);
  BlockCredit credit = Credit(*pool, 2, 2);
  std::vector<BlockRef> blocks = credit.Take(2);
  credit.MoveWindow(blocks, 0, 2);
  credit.MoveWindow(blocks, 2, 2);
  EXPECT_FALSE(pool->ShareToCopy(blocks[0]).holds_row()) << "its quota has all rows";
  EXPECT_EQ(pool->HaveRows(blocks), (std::vector<bool>{false, true}));
  credit = {};
  EXPECT_TRUE(pool->ShareToCopy(blocks[1]).holds_row());
}

TEST(WindowPool, AModelWithoutAGroupHasNoRows) {
  const auto pool = *BlockPool::Create(KvLayout{.layers = 1, .kv_heads = 1, .head_dim = 8}, 4);
  BlockCredit credit = Credit(*pool, 1, 0);
  std::vector<BlockRef> blocks = credit.Take(1);
  credit.MoveWindow(blocks, 0, 1);
  EXPECT_FALSE(blocks[0].holds_row());
  EXPECT_TRUE(credit.HoldsNoRows());
  EXPECT_FALSE(pool->row_counts().apart);
}

// Blocks that were found, from the first: w has its KV of all layers, - has lost its row.
size_t Hit(std::string_view found, int64_t received = 0) {
  std::vector<bool> whole;
  for (const char c : found) whole.push_back(c == 'w');
  return CompleteHit(whole, Layout(), received);
}

// Behind n blocks, a token sees the last 40 - 1 tokens: parts of three blocks.
TEST(CompleteHit, NeedsTheBlocksOfTheWindowOnly) {
  EXPECT_EQ(Hit("wwwww"), 5u);
  EXPECT_EQ(Hit("--www"), 5u);
  EXPECT_EQ(Hit("---ww"), 0u);
  EXPECT_EQ(Hit("w--ww"), 1u) << "behind one block";
  EXPECT_EQ(Hit("-www-"), 4u);
  EXPECT_EQ(Hit("www--w"), 3u);
  EXPECT_EQ(Hit("-----"), 0u);
  EXPECT_EQ(Hit(""), 0u);
}

TEST(CompleteHit, WhatIsReceivedBehindItMovesTheWindow) {
  EXPECT_EQ(Hit("-----", 16 * 8), 5u) << "the window is behind the blocks";
  EXPECT_EQ(Hit("----w", 16 * 7 - 8), 5u);
  EXPECT_EQ(Hit("-----", 16 * 7 - 8), 4u);
}

TEST(SplitKvMemory, BothRunOutForSequencesOfTheGeometricMean) {
  const KvLayout layout = Layout();
  const int64_t longest = 16 * 10000, one = layout.RowsAtOnce(longest, 1);
  const KvRoom room = SplitKvMemory(layout, uint64_t{1} << 30, longest, 1);
  EXPECT_NEAR(static_cast<double>(room.rows) / static_cast<double>(room.blocks),
              std::sqrt(static_cast<double>(one) / 10000), 1e-3);
  const uint64_t bytes = static_cast<uint64_t>(room.blocks) * layout.FullStride() +
                         static_cast<uint64_t>(room.rows) * layout.RowStride();
  EXPECT_LE(bytes, uint64_t{1} << 30);
  EXPECT_GT(bytes, (uint64_t{1} << 30) - 16384 - 4096);
}

TEST(SplitKvMemory, LeavesRoomForTwoSequences) {
  const KvLayout layout = Layout();
  const int64_t one = layout.RowsAtOnce(1 << 20, 64);
  EXPECT_EQ(SplitKvMemory(layout, 100 * 20480, 1 << 20, 64).rows, 2 * one);
  // Too little for that: each block has all layers.
  const KvRoom small = SplitKvMemory(layout, 4 * 20480, 1 << 20, 64);
  EXPECT_EQ(small, (KvRoom{.blocks = 4, .rows = 4}));
  const KvLayout plain{.layers = 2, .kv_heads = 1, .head_dim = 128};
  EXPECT_EQ(SplitKvMemory(plain, 10 * plain.BlockStride(), 1000, 1),
            (KvRoom{.blocks = 10, .rows = 10}));
}

// What a look-up can use is decided by the pages that the cache has.
class WindowCacheTest : public ::testing::Test {
 protected:
  // Blocks 0, 1, ... of a sequence that holds no rows any more.
  std::vector<BlockRef> Compute(int64_t count, int64_t with_rows) {
    BlockCredit credit = Credit(*pool_, count, with_rows);
    std::vector<BlockRef> blocks = credit.Take(count);
    credit.MoveWindow(blocks, count - with_rows, count);
    return blocks;
  }
  static std::vector<BlockId> Ids(size_t count) {
    std::vector<BlockId> ids(count);
    for (size_t i = 0; i < count; ++i) ids[i].bytes[0] = static_cast<uint8_t>(i + 1);
    return ids;
  }

  std::unique_ptr<BlockPool> pool_ = *BlockPool::Create(Layout(), 20, 4);
  PrefixCache cache_{*pool_, *MakeCachePolicy("lru", 20), {}, nullptr};
  const BlockId root_{};
  const std::vector<BlockId> ids_ = Ids(4);
};

TEST_F(WindowCacheTest, PagesWithRowsTakeThePlaceOfThoseWithout) {
  std::vector<BlockRef> first = Compute(4, 0);
  cache_.Insert({}, root_, ids_, first);
  EXPECT_EQ(pool_->HaveRows(first), std::vector<bool>(4, false));
  std::vector<BlockRef> second = Compute(4, 2);
  const uint32_t id = second[3].id();
  cache_.Insert({}, root_, ids_, second);
  EXPECT_EQ(second[0].id(), first[0].id()) << "neither has a row";
  EXPECT_EQ(second[3].id(), id) << "the cache has taken it";
  first.clear();
  second.clear();
  EXPECT_EQ(pool_->blocks_cached(), 4);
  EXPECT_EQ(pool_->HaveRows(cache_.Share(root_, ids_)),
            (std::vector<bool>{false, false, true, true}));
}

TEST_F(WindowCacheTest, ASequenceTakesTheCachedPageAndHoldsItsRow) {
  std::vector<BlockRef> first = Compute(4, 2);
  cache_.Insert({}, root_, ids_, first);
  std::vector<BlockRef> second = Compute(4, 2);
  cache_.Insert({}, root_, ids_, second);
  EXPECT_EQ(second[3].id(), first[3].id());
  EXPECT_TRUE(second[3].holds_row());
  EXPECT_EQ(pool_->row_counts().held, 2);
}

TEST_F(WindowCacheTest, APageThatAHandoffSendsFromStays) {
  std::vector<BlockRef> first = Compute(4, 2);
  cache_.Insert({}, root_, ids_, first);
  std::vector<BlockRef> second = Compute(4, 2);
  const BlockRef sent = second[3].Share();
  cache_.Insert({}, root_, ids_, second);
  EXPECT_EQ(second[3].id(), sent.id());
  EXPECT_EQ(second[2].id(), first[2].id());
}

}  // namespace
}  // namespace penstock
