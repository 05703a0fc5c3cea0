// What a tenant that fills the cache leaves to the others.
#include "kvstore/cache/fair_shares.h"

#include <gtest/gtest.h>

#include <chrono>
#include <random>

#include "kvstore/cache/prefix_cache.h"

namespace penstock {
namespace {

using std::chrono::minutes;
using std::chrono::seconds;

constexpr KvLayout kLayout{.layers = 1, .kv_heads = 1, .head_dim = 8, .block_tokens = 16};
constexpr int64_t kBlocks = 100;
constexpr Duration kKept = minutes(10);

// Keeps the order in which blocks go.
class Evictions final : public PrefixCacheObserver {
 public:
  void OnStored(const BlockId&, std::span<const BlockId>) override {}
  void OnEvicted(const BlockId&, std::span<const BlockId> ids, std::span<const BlockRef>,
                 uint32_t) override {
    gone.insert(gone.end(), ids.begin(), ids.end());
  }
  std::vector<BlockId> gone;
};

// A cache that several tenants use; each prompt is `blocks` blocks of its own.
class SharedCache {
 public:
  SharedCache(const std::string& policy, bool fair) {
    auto order = *MakeCachePolicy(policy, kBlocks);
    if (fair) order = MakeFairShares(std::move(order), kKept);
    cache_ = std::make_unique<PrefixCache>(
        *pool_, std::move(order), PrefixCache::Options{.pinned_max = 10, .pinned_max_of_tenant = 5},
        &evictions_);
  }

  // A prompt from lookup to end; returns the number of its blocks that were cached.
  size_t Serve(const std::string& tenant, uint32_t prompt, size_t blocks) {
    now_ += seconds(1);
    const BlockId root = RootBlockId({.model_fingerprint = 1, .tenant_salt = tenant});
    const auto ids = HashBlocks(root, std::vector<uint32_t>(16 * blocks, prompt), 16);
    auto found = cache_->Lookup(root, ids, now_);
    const size_t hits = found.blocks.size();
    const auto missing = static_cast<int64_t>(blocks - hits);
    EXPECT_TRUE(cache_->MakeRoom(missing, 0, now_));
    for (BlockRef& block : pool_->Reserve(missing)->Take(missing)) {
      found.blocks.push_back(std::move(block));
    }
    found.access.tenant = TenantNumber(tenant);
    cache_->Insert(found.access, root, ids, found.blocks);
    return hits;
  }
  void Wait(Duration time) { now_ += time; }
  const std::vector<BlockId>& evicted() const { return evictions_.gone; }

 private:
  TimePoint now_{};
  Evictions evictions_;
  std::unique_ptr<BlockPool> pool_ = *BlockPool::Create(kLayout, kBlocks);
  std::unique_ptr<PrefixCache> cache_;
};

class FairSharesPolicyTest : public ::testing::TestWithParam<const char*> {};

INSTANTIATE_TEST_SUITE_P(Policies, FairSharesPolicyTest,
                         ::testing::Values("cost", "lru", "lfu", "fifo", "s3-fifo"),
                         [](const auto& param) {
                           const std::string name = param.param;
                           return name == "s3-fifo" ? "s3fifo" : name;
                         });

// `small` asks for its 40 blocks every 50 seconds. Meanwhile `large` asks for new ones, or comes
// back to 120 again and again.
size_t HitsBesideAFlood(SharedCache& cache, bool with_reuse) {
  size_t hits = 0;
  for (uint32_t round = 0; round < 20; ++round) {
    for (uint32_t prompt = 0; prompt < 4; ++prompt) hits += cache.Serve("small", prompt, 10);
    for (uint32_t i = 0; i < 46; ++i) {
      cache.Serve("large", 1000 + (with_reuse ? i % 12 : round * 46 + i), 10);
    }
  }
  return hits;
}

TEST_P(FairSharesPolicyTest, AFloodTakesNothingThatOthersUseWithinTheirShare) {
  for (const bool with_reuse : {false, true}) {
    SharedCache cache(GetParam(), /*fair=*/true);
    EXPECT_EQ(HitsBesideAFlood(cache, with_reuse), 19u * 40) << with_reuse;
  }
}

TEST(FairShares, AFloodTakesItWithoutShares) {
  SharedCache cache("lru", /*fair=*/false);
  EXPECT_EQ(HitsBesideAFlood(cache, /*with_reuse=*/true), 0u);
}

TEST(FairShares, TheOneWithTheMostGivesFirst) {
  SharedCache cache("lru", /*fair=*/true);
  for (uint32_t i = 0; i < 2; ++i) cache.Serve("a", i, 10);
  for (uint32_t i = 0; i < 6; ++i) cache.Serve("b", i, 10);
  for (uint32_t i = 0; i < 2; ++i) cache.Serve("c", i, 10);
  cache.Serve("c", 2, 10);  // `b` gives its oldest
  cache.Serve("a", 2, 10);  // so does it again
  for (uint32_t i = 0; i < 3; ++i) EXPECT_EQ(cache.Serve("a", i, 10), 10u) << i;
  for (uint32_t i = 0; i < 3; ++i) EXPECT_EQ(cache.Serve("c", i, 10), 10u) << i;
  for (uint32_t i = 2; i < 6; ++i) EXPECT_EQ(cache.Serve("b", i, 10), 10u) << i;
}

TEST(FairShares, WhatATenantDoesNotUseGoes) {
  SharedCache cache("lru", /*fair=*/true);
  cache.Serve("small", 1, 30);
  cache.Wait(kKept);
  for (uint32_t i = 0; i < 10; ++i) cache.Serve("large", 100 + i, 10);
  EXPECT_EQ(cache.Serve("small", 1, 30), 0u);
}

TEST(FairShares, MoreThanAShareIsNotProtected) {
  SharedCache cache("lru", /*fair=*/true);
  for (uint32_t i = 0; i < 8; ++i) cache.Serve("first", i, 10);
  for (uint32_t i = 0; i < 6; ++i) cache.Serve("second", i, 10);
  size_t left = 0;
  for (uint32_t i = 8; i-- > 0;) left += cache.Serve("first", i, 10) / 10;
  EXPECT_EQ(left, 5u);
}

// With one tenant, and with none, blocks go in the order of the policy.
TEST_P(FairSharesPolicyTest, OneTenantIsServedAsBefore) {
  for (const std::string tenant : {"", "only"}) {
    SharedCache plain(GetParam(), /*fair=*/false), fair(GetParam(), /*fair=*/true);
    std::mt19937 random(7);
    for (int i = 0; i < 2000; ++i) {
      const uint32_t prompt = random() % 3 == 0 ? random() % 8 : random() % 60;
      const size_t blocks = 1 + random() % 12;
      EXPECT_EQ(plain.Serve(tenant, prompt, blocks), fair.Serve(tenant, prompt, blocks));
    }
    EXPECT_GT(plain.evicted().size(), 1000u);
    EXPECT_EQ(plain.evicted(), fair.evicted());
  }
}

TEST(FairShares, NumbersTellTenantsApart) {
  EXPECT_EQ(TenantNumber(""), 0u);
  EXPECT_NE(TenantNumber("a"), 0u);
  EXPECT_NE(TenantNumber("a"), TenantNumber("c"));
  EXPECT_EQ(TenantNumber("a"), TenantNumber("a"));
}

}  // namespace
}  // namespace penstock
