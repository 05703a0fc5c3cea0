#include "kvstore/cache/block_pool.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/resource.h>

#include <algorithm>
#include <cstdint>
#include <set>
#include <thread>

#include "tests/support/sanitizers.h"

namespace penstock {
namespace {

constexpr KvLayout kLayout{.layers = 2, .kv_heads = 2, .head_dim = 8, .block_tokens = 16};

std::unique_ptr<BlockPool> NewPool(int64_t blocks) {
  auto pool = BlockPool::Create(kLayout, blocks);
  EXPECT_TRUE(pool.ok()) << pool.status();
  return *std::move(pool);
}

TEST(BlockPoolTest, GivesZeroedPagesOfWholeStrides) {
  const auto pool = NewPool(5);
  const PagedKv kv = pool->view();
  EXPECT_EQ(kv.blocks, 5);
  EXPECT_EQ(kv.layout, kLayout);
  EXPECT_EQ(reinterpret_cast<uintptr_t>(kv.arena) % 4096, 0u);
  for (size_t i = 0; i < 5 * kLayout.BlockStride(); ++i) ASSERT_EQ(kv.arena[i], std::byte{0});
}

TEST(BlockPoolTest, CountsReservedAndUsedBlocks) {
  const auto pool = NewPool(10);
  auto credit = pool->Reserve(6);
  ASSERT_TRUE(credit.ok());
  EXPECT_EQ(pool->blocks_reserved(), 6);
  EXPECT_EQ(pool->blocks_used(), 0);
  auto blocks = credit->Take(4);
  EXPECT_EQ(credit->blocks(), 2);
  EXPECT_EQ(pool->blocks_reserved(), 2);
  EXPECT_EQ(pool->blocks_used(), 4);
  *credit = BlockCredit();
  EXPECT_EQ(pool->blocks_reserved(), 0);
  blocks.pop_back();
  EXPECT_EQ(pool->blocks_used(), 3);
  EXPECT_EQ(pool->blocks_total(), 10);
}

TEST(BlockPoolTest, RefusesMoreThanIsLeftAndSaysHowMuch) {
  const auto pool = NewPool(10);
  auto first = pool->Reserve(4);
  const auto used = first->Take(3);
  const auto second = pool->Reserve(7);
  ASSERT_TRUE(absl::IsResourceExhausted(second.status()));
  EXPECT_THAT(Message(second.status()), testing::HasSubstr("7 blocks requested, 6 of 10"));
  EXPECT_TRUE(pool->Reserve(6).ok());
}

TEST(BlockPoolTest, EveryBlockHasOneOwnerUntilItIsShared) {
  const auto pool = NewPool(8);
  auto credit = pool->Reserve(8);
  auto blocks = credit->Take(8);
  std::set<uint32_t> ids;
  for (const BlockRef& block : blocks) ids.insert(block.id());
  EXPECT_EQ(ids.size(), 8u);
  EXPECT_LT(*ids.rbegin(), 8u);

  BlockRef shared = blocks[3].Share();
  const uint32_t id = shared.id();
  blocks.clear();
  EXPECT_EQ(pool->blocks_used(), 1);
  EXPECT_EQ(shared.id(), id);
  auto rest = pool->Reserve(7);
  for (const BlockRef& block : rest->Take(7)) EXPECT_NE(block.id(), id);
  shared = BlockRef();
  EXPECT_FALSE(shared);
  EXPECT_EQ(pool->blocks_used(), 0);
}

TEST(BlockPoolTest, AssignmentReleasesWhatWasThere) {
  const auto pool = NewPool(4);
  auto credit = pool->Reserve(2);
  auto blocks = credit->Take(2);
  blocks[0] = std::move(blocks[1]);
  EXPECT_EQ(pool->blocks_used(), 1);
  auto other = pool->Reserve(2);
  *credit = *std::move(other);
  EXPECT_EQ(pool->blocks_reserved(), 2);
}

TEST(BlockPoolTest, BadSizesAreErrorsWithNumbers) {
  EXPECT_TRUE(absl::IsInvalidArgument(BlockPool::Create(kLayout, 0).status()));
  EXPECT_TRUE(absl::IsInvalidArgument(BlockPool::Create(KvLayout{}, 4).status()));
  const auto huge = BlockPool::Create(kLayout, int64_t{1} << 31);
  // 16 TiB of address space may or may not be there; beyond 47 bits it never is.
  KvLayout wide = kLayout;
  wide.layers = 1 << 20;
  const auto never = BlockPool::Create(wide, int64_t{1} << 31);
  ASSERT_TRUE(absl::IsResourceExhausted(never.status())) << never.status();
  EXPECT_THAT(Message(never.status()), testing::HasSubstr("2147483648 blocks"));
}

#ifndef PENSTOCK_TEST_SANITIZED  // whose shadow memory needs the address space
TEST(BlockPoolTest, AddressSpaceThatIsUsedUpIsAnErrorWithNumbers) {
  rlimit before{};
  ASSERT_EQ(getrlimit(RLIMIT_AS, &before), 0);
  rlimit low = before;
  low.rlim_cur = rlim_t{1} << 30;
  ASSERT_EQ(setrlimit(RLIMIT_AS, &low), 0);
  const auto stride = static_cast<int64_t>(kLayout.BlockStride());
  const auto pool = BlockPool::Create(kLayout, (int64_t{2} << 30) / stride);
  EXPECT_EQ(setrlimit(RLIMIT_AS, &before), 0);
  ASSERT_TRUE(absl::IsResourceExhausted(pool.status())) << pool.status();
  EXPECT_THAT(Message(pool.status()), testing::HasSubstr("2.0 GiB, which cannot be mapped"));
}
#endif

TEST(BlockPoolTest, ThreadsTakeAndGiveBack) {
  const auto pool = NewPool(64);
  std::vector<std::jthread> threads;
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([&] {
      for (int i = 0; i < 500; ++i) {
        auto credit = pool->Reserve(1 + i % 16);
        if (!credit.ok()) continue;
        auto blocks = credit->Take(credit->blocks() / 2);
        for (const BlockRef& block : blocks) {
          std::fill_n(pool->view().Block(block.id()), 64, std::byte{1});
        }
        std::vector<BlockRef> copies;
        for (const BlockRef& block : blocks) copies.push_back(block.Share());
        blocks.clear();
      }
    });
  }
  threads.clear();
  EXPECT_EQ(pool->blocks_used() + pool->blocks_reserved(), 0);
}

TEST(BlockPoolDeathTest, MistakesOfOursAreSeen) {
  const auto pool = NewPool(4);
  auto credit = pool->Reserve(2);
  EXPECT_DEATH(credit->Take(3), "count <= blocks_");
  EXPECT_DEATH(BlockRef().Share(), "empty BlockRef");
  EXPECT_DEATH(
      {
        auto other = NewPool(4);
        auto leaked = new std::vector<BlockRef>(other->Reserve(1)->Take(1));
        other.reset();
        delete leaked;
      },
      "blocks_used\\(\\) == 0");
}

}  // namespace
}  // namespace penstock
