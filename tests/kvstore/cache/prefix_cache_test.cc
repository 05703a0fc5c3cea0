#include "kvstore/cache/prefix_cache.h"

#include <gtest/gtest.h>

#include <chrono>
#include <numeric>

namespace penstock {
namespace {

using std::chrono::seconds;

constexpr KvLayout kLayout{.layers = 1, .kv_heads = 1, .head_dim = 8, .block_tokens = 16};
const BlockId kRoot = RootBlockId({.model_fingerprint = 1, .kv_format = "bf16"});

// `blocks` ids below `root`; prompts of equal `stem` share all that both have, from `fork` on those
// of unequal `branch` differ.
std::vector<BlockId> Ids(uint32_t stem, int blocks, uint32_t branch = 0, int fork = 0,
                         const BlockId& root = kRoot) {
  std::vector<uint32_t> tokens;
  for (int i = 0; i < blocks; ++i) {
    tokens.insert(tokens.end(), 16, i < fork ? stem : stem + 1000 * branch);
  }
  return HashBlocks(root, tokens, 16);
}

PrefixCache::PinTerms UntilSecond(int64_t second, const std::string& tenant = "") {
  return {.tenant = tenant, .until = TimePoint(seconds(second))};
}

class PrefixCacheTest : public ::testing::Test {
 protected:
  void Make(const std::string& policy, int64_t blocks, PrefixCache::Options options = {},
            int32_t window = 0) {
    KvLayout layout = kLayout;
    layout.window = window;
    pool_ = *BlockPool::Create(layout, blocks);
    cache_ =
        std::make_unique<PrefixCache>(*pool_, *MakeCachePolicy(policy, blocks), options, nullptr);
  }
  TimePoint Now() { return TimePoint(seconds(++now_)); }

  std::vector<BlockRef> Take(int64_t blocks) {
    EXPECT_TRUE(cache_->MakeRoom(blocks, 0, TimePoint(seconds(now_))));
    auto credit = pool_->Reserve(blocks);
    EXPECT_TRUE(credit.ok()) << credit.status();
    return credit->Take(blocks);
  }

  // A prompt from lookup to end; returns how many blocks were there.
  size_t Serve(const std::vector<BlockId>& ids, const BlockId& root = kRoot) {
    auto found = cache_->Lookup(root, ids, Now());
    const size_t hits = found.blocks.size();
    for (BlockRef& block : Take(static_cast<int64_t>(ids.size() - hits))) {
      found.blocks.push_back(std::move(block));
    }
    cache_->Insert(found.access, root, ids, found.blocks);
    return hits;
  }

  int64_t now_ = 0;
  std::unique_ptr<BlockPool> pool_;
  std::unique_ptr<PrefixCache> cache_;
};

TEST_F(PrefixCacheTest, FindsTheLeadingBlocksAndTheirPages) {
  Make("lru", 100);
  const auto ids = Ids(1, 10);
  auto found = cache_->Lookup(kRoot, ids, Now());
  EXPECT_TRUE(found.blocks.empty());
  std::vector<BlockRef> pages = Take(10);
  cache_->Insert(found.access, kRoot, ids, pages);
  EXPECT_EQ(pool_->blocks_used(), 10);
  EXPECT_EQ(pool_->blocks_cached(), 0);
  const auto again = cache_->Lookup(kRoot, Ids(1, 14, 2, 7), Now());
  ASSERT_EQ(again.blocks.size(), 7u);
  for (size_t i = 0; i < 7; ++i) EXPECT_EQ(again.blocks[i].id(), pages[i].id());
  EXPECT_EQ(cache_->runs(), 2u);  // Split where they part.
  pages.clear();
  EXPECT_EQ(pool_->blocks_used(), 7);
  EXPECT_EQ(pool_->blocks_cached(), 3);
}

TEST_F(PrefixCacheTest, TenantsDoNotSeeEachOther) {
  Make("lru", 100);
  const BlockId other =
      RootBlockId({.model_fingerprint = 1, .kv_format = "bf16", .tenant_salt = "x"});
  EXPECT_EQ(Serve(Ids(1, 5)), 0u);
  EXPECT_EQ(Serve(Ids(1, 5, 0, 0, other), other), 0u);
  EXPECT_EQ(Serve(Ids(1, 5)), 5u);
  // Even ids that leaked are of no use under another root.
  EXPECT_EQ(cache_->CountLeading(other, Ids(1, 5)), 0);
}

TEST_F(PrefixCacheTest, APageComputedTwiceIsKeptOnce) {
  Make("lru", 100);
  const auto ids = Ids(1, 4);
  auto first = cache_->Lookup(kRoot, ids, Now());
  auto second = cache_->Lookup(kRoot, ids, Now());
  std::vector<BlockRef> a = Take(4), b = Take(4);
  cache_->Insert(first.access, kRoot, ids, a);
  cache_->Insert(second.access, kRoot, ids, b);
  for (size_t i = 0; i < 4; ++i) EXPECT_EQ(a[i].id(), b[i].id());
  EXPECT_EQ(pool_->blocks_used(), 4);
}

TEST_F(PrefixCacheTest, WhatASequenceHoldsStays) {
  Make("lru", 10);
  auto held = cache_->Lookup(kRoot, Ids(1, 6), Now());
  held.blocks = Take(6);
  cache_->Insert(held.access, kRoot, Ids(1, 6), held.blocks);
  Serve(Ids(2, 4));
  EXPECT_EQ(cache_->Evict(10, Now()), 4);
  EXPECT_FALSE(cache_->MakeRoom(5, 0, Now()));
  held.blocks.resize(3);  // The tail of a run may go while its head is held.
  EXPECT_EQ(cache_->Evict(10, Now()), 3);
  EXPECT_EQ(cache_->CountLeading(kRoot, Ids(1, 6)), 3);
  held.blocks.clear();
  EXPECT_EQ(cache_->Evict(10, Now()), 3);
  EXPECT_EQ(cache_->blocks(), 0);
  EXPECT_EQ(cache_->runs(), 0u);
}

TEST_F(PrefixCacheTest, LruEvictsTheLeafUsedLongestAgoTailFirst) {
  Make("lru", 12);
  Serve(Ids(1, 6, 1, 3));
  Serve(Ids(1, 6, 2, 3));
  Serve(Ids(1, 6, 1, 3));
  EXPECT_EQ(cache_->Evict(2, Now()), 2);
  EXPECT_EQ(cache_->CountLeading(kRoot, Ids(1, 6, 2, 3)), 4);
  EXPECT_EQ(cache_->CountLeading(kRoot, Ids(1, 6, 1, 3)), 6);
  cache_->Evict(2, Now());
  EXPECT_EQ(cache_->CountLeading(kRoot, Ids(1, 6, 1, 3)), 5);
}

TEST_F(PrefixCacheTest, LfuKeepsWhatIsUsedOften) {
  Make("lfu", 10);
  for (int i = 0; i < 3; ++i) Serve(Ids(1, 5));
  Serve(Ids(2, 5));
  Serve(Ids(3, 5));
  EXPECT_EQ(cache_->CountLeading(kRoot, Ids(1, 5)), 5);
  EXPECT_EQ(cache_->CountLeading(kRoot, Ids(2, 5)), 0);
}

TEST_F(PrefixCacheTest, FifoEvictsWhatCameFirst) {
  Make("fifo", 10);
  Serve(Ids(1, 5));
  Serve(Ids(2, 5));
  Serve(Ids(1, 5));
  Serve(Ids(3, 5));
  EXPECT_EQ(cache_->CountLeading(kRoot, Ids(1, 5)), 0);
  EXPECT_EQ(cache_->CountLeading(kRoot, Ids(2, 5)), 5);
}

TEST_F(PrefixCacheTest, S3FifoKeepsAWorkingSetThroughAScan) {
  Make("s3-fifo", 20);
  for (int i = 0; i < 4; ++i) Serve(Ids(1, 5));
  for (uint32_t scan = 100; scan < 200; ++scan) Serve(Ids(scan, 5));
  EXPECT_EQ(cache_->CountLeading(kRoot, Ids(1, 5)), 5);
}

TEST_F(PrefixCacheTest, CostLearnsWhatComesBack) {
  Make("cost", 60);
  uint32_t scan = 1000;
  size_t hits = 0;
  for (int round = 0; round < 400; ++round) {
    for (uint32_t chat = 1; chat <= 3; ++chat) hits += Serve(Ids(chat, 10));
    for (int i = 0; i < 4; ++i) Serve(Ids(++scan, 10));
  }
  EXPECT_GT(hits, 400u * 3 * 10 * 9 / 10);
}

TEST_F(PrefixCacheTest, APinOutlastsOtherPrefixesUntilItEnds) {
  Make("lru", 10, {.pinned_max = 10, .pinned_max_of_tenant = 10});
  Serve(Ids(1, 5));
  EXPECT_EQ(cache_->Pin(kRoot, Ids(1, 5), UntilSecond(100), Now()), 5);
  for (uint32_t other = 2; other < 10; ++other) Serve(Ids(other, 5));
  EXPECT_EQ(cache_->CountLeading(kRoot, Ids(1, 5)), 5);
  now_ = 100;
  for (uint32_t other = 10; other < 12; ++other) Serve(Ids(other, 5));
  EXPECT_EQ(cache_->CountLeading(kRoot, Ids(1, 5)), 0);
  EXPECT_EQ(cache_->blocks_pinned(), 0);
}

TEST_F(PrefixCacheTest, APinYieldsToARequestThatNeedsItsRoom) {
  Make("lru", 10, {.pinned_max = 10, .pinned_max_of_tenant = 10});
  Serve(Ids(1, 5));
  cache_->Pin(kRoot, Ids(1, 5), UntilSecond(1000), Now());
  Serve(Ids(2, 8));
  EXPECT_EQ(cache_->CountLeading(kRoot, Ids(1, 5)), 2);
  EXPECT_EQ(cache_->counts().evicted_pinned, 3u);
  EXPECT_EQ(cache_->blocks_pinned(), 2);
}

TEST_F(PrefixCacheTest, APinDoesNotYieldToRoomThatOthersMayTakeLater) {
  Make("lru", 10, {.pinned_max = 10, .pinned_max_of_tenant = 10});
  Serve(Ids(1, 5));
  cache_->Pin(kRoot, Ids(1, 5), UntilSecond(1000), Now());
  Serve(Ids(2, 5));
  EXPECT_TRUE(cache_->MakeRoom(1, 3, Now()));
  EXPECT_EQ(pool_->blocks_free(), 4);
  EXPECT_TRUE(cache_->MakeRoom(4, 4, Now()));
  EXPECT_EQ(pool_->blocks_free(), 5);
  EXPECT_EQ(cache_->CountLeading(kRoot, Ids(1, 5)), 5);
  EXPECT_TRUE(cache_->MakeRoom(6, 4, Now()));
  EXPECT_EQ(pool_->blocks_free(), 6);
  EXPECT_EQ(cache_->counts().evicted_pinned, 1u);
}

TEST_F(PrefixCacheTest, PinsStayWithinTheTenantsAndTheWholeQuota) {
  Make("lru", 100, {.pinned_max = 10, .pinned_max_of_tenant = 6});
  const BlockId other = RootBlockId({.model_fingerprint = 1, .tenant_salt = "other"});
  Serve(Ids(1, 8));
  Serve(Ids(1, 8, 0, 0, other), other);
  EXPECT_EQ(cache_->Pin(kRoot, Ids(1, 8), UntilSecond(100), Now()), 6);
  EXPECT_EQ(cache_->Pin(other, Ids(1, 8, 0, 0, other), UntilSecond(100, "other"), Now()), 4);
  EXPECT_EQ(cache_->blocks_pinned(), 10);
  // Pinned once more: longer, not more.
  EXPECT_EQ(cache_->Pin(kRoot, Ids(1, 6), UntilSecond(200), Now()), 6);
  EXPECT_EQ(cache_->blocks_pinned(), 10);
}

// Each salt that a tenant's clients choose, and each KV policy, is a namespace of its own.
TEST_F(PrefixCacheTest, ATenantHasOneQuotaForAllItsNamespaces) {
  Make("lru", 100, {.pinned_max = 12, .pinned_max_of_tenant = 6});
  const BlockId salted = RootBlockId({.model_fingerprint = 1, .tenant_salt = "a, salted"});
  const BlockId other = RootBlockId({.model_fingerprint = 1, .tenant_salt = "b"});
  const auto pin = [&](const BlockId& root, int blocks, int64_t until, const std::string& tenant) {
    const std::vector<BlockId> ids = Ids(1, blocks, 0, 0, root);
    Serve(ids, root);
    return cache_->Pin(root, ids, UntilSecond(until, tenant), Now());
  };
  EXPECT_EQ(pin(kRoot, 4, 50, "a"), 4);
  EXPECT_EQ(pin(salted, 4, 100, "a"), 2);
  EXPECT_EQ(pin(salted, 4, 100, "a"), 2) << "pinned again, not more";
  EXPECT_EQ(pin(other, 8, 100, "b"), 6) << "another tenant has its own quota";
  EXPECT_EQ(cache_->blocks_pinned(), 12);
  now_ = 50;  // what has ended no longer counts
  EXPECT_EQ(pin(salted, 8, 100, "a"), 6);
  cache_->Evict(100, Now());
  EXPECT_EQ(cache_->blocks_pinned(), 0);
  EXPECT_EQ(pin(kRoot, 8, 200, "a"), 6) << "what is evicted no longer counts";
}

TEST_F(PrefixCacheTest, OneRequestsBlocksAreOneRunHoweverTheyCame) {
  Make("cost", 100);
  const auto ids = Ids(1, 12);
  const auto found = cache_->Lookup(kRoot, ids, Now());
  std::vector<BlockRef> pages = Take(12);
  for (size_t done = 4; done <= 12; done += 4) {
    cache_->Insert(found.access, kRoot, std::span(ids).first(done), std::span(pages).first(done));
  }
  EXPECT_EQ(cache_->runs(), 1u);
  EXPECT_EQ(cache_->blocks(), 12);
}

TEST(CachePolicyTest, NamesWhatThereIs) {
  const auto policy = MakeCachePolicy("mru", 10);
  ASSERT_TRUE(absl::IsInvalidArgument(policy.status()));
  EXPECT_NE(Message(policy.status()).find("cost,lru,lfu,fifo,s3-fifo"), std::string::npos);
}

// A sequence with a window drops the first blocks of its chain and uses the others.
TEST_F(PrefixCacheTest, WithAWindowTheTrunkIsEvictedBeforeTheUsedTail) {
  Make("lru", 10, {}, 32);
  const auto ids = Ids(1, 10);
  std::vector<BlockRef> pages = Take(10);
  cache_->Insert(cache_->Use(kRoot, ids, Now()), kRoot, ids, pages);
  for (size_t i = 0; i < 6; ++i) pages[i] = BlockRef();
  EXPECT_EQ(pool_->blocks_used(), 4);
  std::vector<BlockRef> found = cache_->Share(kRoot, ids, 8);
  ASSERT_EQ(found.size(), 10u);
  EXPECT_FALSE(found[7]);
  EXPECT_EQ(found[8].id(), pages[8].id());
  found.clear();
  std::vector<BlockRef> others = Take(2);
  EXPECT_EQ(cache_->CountLeading(kRoot, ids), 4);
  for (const BlockRef& other : others) {
    for (size_t i = 6; i < 10; ++i) EXPECT_NE(other.id(), pages[i].id()) << "a used page was given";
  }
  // The sequence keeps its pages, and they come free with it.
  EXPECT_EQ(pool_->blocks_used(), 6);
  pages.clear();
  EXPECT_EQ(pool_->blocks_free(), 4);
  EXPECT_EQ(pool_->blocks_cached(), 4);
}

TEST_F(PrefixCacheTest, WithAWindowLeadingReferencesMayBeEmpty) {
  Make("lru", 20, {}, 32);
  const auto ids = Ids(1, 10);
  std::vector<BlockRef> pages = Take(10);
  const CacheAccess access = cache_->Use(kRoot, ids, Now());
  const auto first = std::span(ids).first(6);
  cache_->Insert(access, kRoot, first, std::span(pages).first(6));
  for (size_t i = 0; i < 5; ++i) pages[i] = BlockRef();
  cache_->Insert(access, kRoot, ids, pages);
  EXPECT_EQ(cache_->CountLeading(kRoot, ids), 10);
  EXPECT_EQ(pool_->blocks_used(), 5);
}

}  // namespace
}  // namespace penstock
