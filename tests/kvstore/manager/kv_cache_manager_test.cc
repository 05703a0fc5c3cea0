// A worker's cache over its tiers: what comes back is what went, and a disk that hangs keeps nobody
// from going on.

#include "kvstore/manager/kv_cache_manager.h"

#include <gtest/gtest.h>

#include <cstring>
#include <future>
#include <thread>

#include "kvstore/cache/passed_blocks.h"
#include "lab/fake/temp_folder.h"
#include "tests/kvstore/tiers/store_faults.h"
#include "tests/kvstore/tiers/store_fixture.h"
#include "tests/support/wait_until.h"

namespace penstock {
namespace {

constexpr KvLayout kLayout{.layers = 1, .kv_heads = 1, .head_dim = 8, .block_tokens = 16};
constexpr int64_t kPool = 20;
constexpr int64_t kPrompt = 8;  // blocks

class WorkerCacheTest : public ::testing::Test {
 protected:
  void SetUp() override {
    TieredStore::Options options{.dram_bytes = 4 * kLayout.BlockStride()};
    options.nvme.directory = directory_.path();
    options.nvme.bytes = uint64_t{16} << 20;
    // A test waits for it where the disk hangs, and no other read of a busy machine takes so long.
    options.nvme.io_timeout = std::chrono::seconds(2);
    options.nvme.retry_first = std::chrono::milliseconds(20);
    options.nvme_uses_min = 1;
    store_ = *TieredStore::Open(
        options, pool_->view(), [this](const BlockEvent& event) { cache_->OnStoreEvent(event); },
        {.files = nullptr, .io = std::make_unique<FaultyIo>(MakeThreadIoQueue(2), faults_)});
    store_->Start();
    cache_->AttachStore(store_.get());
  }
  void TearDown() override {
    faults_->hang_reads = false;
    cache_->AttachStore(nullptr);
    store_->Stop();
    EXPECT_EQ(pool_->blocks_used(), 0);
    EXPECT_EQ(pool_->blocks_reserved(), 0);
    EXPECT_EQ(pool_->blocks_leaving(), 0);
    cache_.reset();
    store_.reset();
  }

  PromptBlocks Prompt(uint32_t seed, const std::string& tenant = "") {
    const std::vector<uint32_t> tokens(static_cast<size_t>(kPrompt) * 16, seed);
    PromptBlocks prompt = cache_->NameBlocks("", tokens);
    prompt.tenant = tenant;
    return prompt;
  }
  std::optional<CacheAdmission> Admit(const PromptBlocks& prompt) {
    std::optional<CacheAdmission> admission;
    EXPECT_TRUE(WaitUntil([&] {  // Evicted blocks are copied first.
      admission = cache_->Admit(prompt, {.held_max = kPrompt, .blocks = kPrompt});
      return admission.has_value();
    }));
    return admission;
  }
  void AwaitRestore(const PromptBlocks& prompt, std::optional<CacheAdmission>& admission) {
    EXPECT_TRUE(WaitUntil([&] { return cache_->FinishRestore(prompt, admission); }));
  }
  std::byte* Page(const BlockRef& page) const { return pool_->view().Block(page.id()); }

  // As an engine that computes what is not held.
  void Compute(uint32_t seed, const std::string& tenant = "") {
    const PromptBlocks prompt = Prompt(seed, tenant);
    auto admission = Admit(prompt);
    AwaitRestore(prompt, admission);
    ASSERT_TRUE(admission.has_value());
    std::vector<BlockRef> pages = std::move(admission->held);
    for (BlockRef& page : admission->credit.Take(admission->credit.blocks())) {
      std::memset(Page(page), static_cast<int>(seed), kLayout.BlockStride());
      pages.push_back(std::move(page));
    }
    cache_->Insert(admission->access, prompt, pages);
  }
  // The first prompt is on the disk only.
  void PushTheFirstPromptDown() {
    for (uint32_t seed = 1; seed <= 8; ++seed) {
      Compute(seed);
      store_->WaitUntilQuiet();
    }
    ASSERT_EQ(store_->Find(Prompt(1).ids).nvme, static_cast<size_t>(kPrompt));
  }

  SteadyClock clock_;
  TempFolder directory_;
  std::shared_ptr<DiskFaults> faults_ = std::make_shared<DiskFaults>();
  std::unique_ptr<BlockPool> pool_ = *BlockPool::Create(kLayout, kPool);
  std::unique_ptr<KvCacheManager> cache_ = *KvCacheManager::Create(
      *pool_, clock_, {.policy = "lru", .model_fingerprint = 1, .kv_format = "bf16"});
  std::unique_ptr<TieredStore> store_;
};

// Of 20 blocks a prompt takes 8. Where blocks are in lower tiers makes no difference here.
TEST_F(WorkerCacheTest, OneTenantDoesNotDisplaceWhatAnotherUses) {
  cache_->AttachStore(nullptr);
  Compute(1, "small");
  for (uint32_t seed = 2; seed <= 9; ++seed) Compute(seed, "large");
  EXPECT_EQ(cache_->CountLeading(Prompt(1)), kPrompt);
  for (uint32_t seed = 2; seed <= 9; ++seed) Compute(seed);  // by callers without a tenant
  EXPECT_EQ(cache_->CountLeading(Prompt(1)), 0);
  cache_->AttachStore(store_.get());
}

// Also not what an earlier process has left on the disk.
TEST_F(WorkerCacheTest, ACacheThatKeepsNothingFindsNothing) {
  PushTheFirstPromptDown();
  cache_->Clear();
  cache_->AttachStore(nullptr);
  cache_ = *KvCacheManager::Create(
      *pool_, clock_, {.keeps_blocks = false, .model_fingerprint = 1, .kv_format = "bf16"});
  cache_->AttachStore(store_.get());
  const PromptBlocks prompt = Prompt(1);
  ASSERT_EQ(store_->Find(prompt.ids).nvme, static_cast<size_t>(kPrompt));
  for (int i = 0; i < 2; ++i) {
    EXPECT_EQ(cache_->CountLeading(prompt), 0);
    EXPECT_FALSE(cache_->HasInLowerTier(prompt, kPrompt));
    auto admission = Admit(prompt);
    EXPECT_TRUE(admission->held.empty());
    EXPECT_EQ(admission->restore, nullptr);
    EXPECT_EQ(admission->credit.blocks(), kPrompt);
    Compute(1);
    EXPECT_EQ(pool_->blocks_cached(), 0);
  }
}

TEST_F(WorkerCacheTest, WhatComesBackIsWhatWentAndIsFoundByOthers) {
  PushTheFirstPromptDown();
  const PromptBlocks prompt = Prompt(1);
  EXPECT_TRUE(cache_->HasInLowerTier(prompt, kPrompt));
  auto admission = Admit(prompt);
  EXPECT_TRUE(admission->held.empty());
  AwaitRestore(prompt, admission);
  ASSERT_TRUE(admission.has_value());
  ASSERT_EQ(admission->held.size(), static_cast<size_t>(kPrompt));
  const std::vector<std::byte> wanted(kLayout.BlockStride(), std::byte{1});
  for (const BlockRef& page : admission->held) {
    EXPECT_EQ(std::memcmp(Page(page), wanted.data(), wanted.size()), 0);
  }
  EXPECT_FALSE(cache_->HasInLowerTier(prompt, kPrompt));
  auto other = cache_->Admit(prompt, {.held_max = kPrompt, .blocks = kPrompt});
  ASSERT_TRUE(other.has_value());
  EXPECT_EQ(other->held.size(), static_cast<size_t>(kPrompt));
  EXPECT_EQ(cache_->stats().missed[2], 8u * kPrompt) << "each prompt was new once";
}

// Its pages are still the disk's, and others have the rest of the pool: whoever would wait for more
// while it holds some could keep those from ever ending.
TEST_F(WorkerCacheTest, WhoCannotHaveAllAfterAHangGivesItsBlocksBack) {
  PushTheFirstPromptDown();
  faults_->hang_reads = true;
  const PromptBlocks prompt = Prompt(1);
  auto admission = Admit(prompt);
  std::optional<BlockCredit> others;
  ASSERT_TRUE(WaitUntil([&] {
    others = cache_->Reserve(kPool - kPrompt);
    return others.has_value();
  }));
  AwaitRestore(prompt, admission);
  EXPECT_FALSE(admission.has_value());
  EXPECT_EQ(pool_->blocks_used(), kPrompt) << "the disk's";
  faults_->hang_reads = false;
  EXPECT_TRUE(WaitUntil([&] { return pool_->blocks_used() == 0; }));
  others.reset();
  EXPECT_TRUE(WaitUntil([&] { return store_->stats().nvme.serving; }));
  admission = Admit(prompt);
  AwaitRestore(prompt, admission);
  ASSERT_TRUE(admission.has_value());
  EXPECT_EQ(admission->held.size(), static_cast<size_t>(kPrompt));
}

TEST_F(WorkerCacheTest, AHangIsAMissWhereThereIsRoom) {
  PushTheFirstPromptDown();
  faults_->hang_reads = true;
  const PromptBlocks prompt = Prompt(1);
  auto admission = Admit(prompt);
  AwaitRestore(prompt, admission);
  if (!admission) admission = Admit(prompt);  // Evicted blocks were still being copied.
  AwaitRestore(prompt, admission);
  ASSERT_TRUE(admission.has_value());
  EXPECT_TRUE(admission->held.empty());
  EXPECT_EQ(admission->credit.blocks(), kPrompt);
  EXPECT_FALSE(cache_->HasInLowerTier(prompt, kPrompt));
}

TEST_F(WorkerCacheTest, WhoLeavesWhileItIsRestoredLeavesNothing) {
  PushTheFirstPromptDown();
  auto admission = Admit(Prompt(1));
  ASSERT_TRUE(admission->restore != nullptr);
  admission.reset();
  EXPECT_TRUE(
      WaitUntil([&] { return pool_->blocks_used() == 0 && pool_->blocks_reserved() == 0; }));
}

TEST_F(WorkerCacheTest, TheCallbackOfARestoreComesWhenItCanBeFinished) {
  PushTheFirstPromptDown();
  const PromptBlocks prompt = Prompt(1);
  std::promise<void> restored;
  std::optional<CacheAdmission> admission;
  ASSERT_TRUE(WaitUntil([&] {
    admission = cache_->Admit(prompt, {.held_max = kPrompt, .blocks = kPrompt, .on_restored = [&] {
                                         restored.set_value();
                                       }});
    return admission.has_value();
  }));
  ASSERT_EQ(restored.get_future().wait_for(std::chrono::seconds(60)), std::future_status::ready);
  EXPECT_TRUE(cache_->FinishRestore(prompt, admission));
  EXPECT_EQ(admission->held.size(), static_cast<size_t>(kPrompt));
}

// Two requests that share cached blocks only to look at them must not wake each other for ever.
TEST_F(WorkerCacheTest, ARequestThatIsRefusedWakesNobody) {
  Compute(1);
  const auto others = cache_->Reserve(kPool - kPrompt);
  ASSERT_TRUE(others.has_value());
  const uint64_t freed = cache_->freed_count();
  EXPECT_FALSE(cache_->Admit(Prompt(1), {.held_max = kPrompt, .blocks = kPrompt + 1}).has_value());
  EXPECT_EQ(cache_->freed_count(), freed);
}

// No polling: a lost wake-up ends in the failure below.
TEST_F(WorkerCacheTest, ARequestThatIsRefusedIsToldWhenBlocksComeFree) {
  auto others = cache_->Reserve(kPool);
  for (uint32_t seed = 1; seed <= 50; ++seed) {
    const uint64_t freed = cache_->freed_count();
    ASSERT_FALSE(cache_->Admit(Prompt(seed), {.blocks = kPrompt}).has_value());
    std::thread other([&] { others.reset(); });
    std::promise<void> told;
    const auto wait = cache_->WhenFreed(freed, [&] { told.set_value(); });
    ASSERT_EQ(told.get_future().wait_for(std::chrono::seconds(60)), std::future_status::ready);
    other.join();
    ASSERT_TRUE(cache_->Admit(Prompt(seed), {.blocks = kPrompt}).has_value());
    others = cache_->Reserve(kPool);
  }
}

TEST_F(WorkerCacheTest, WhatIsClearedIsNotSpilled) {
  Compute(1);
  EXPECT_EQ(cache_->Clear(), kPrompt);
  store_->WaitUntilQuiet();
  EXPECT_EQ(store_->Find(Prompt(1).ids).blocks, 0u);
  EXPECT_EQ(pool_->blocks_free(), kPool);
}

// A model with a window of two blocks.
class WindowCacheTest : public ::testing::Test {
 protected:
  static KvLayout Layout() {
    KvLayout layout = kLayout;
    layout.window = 32;
    return layout;
  }
  PromptBlocks Prompt(uint32_t seed, size_t blocks) const {
    return cache_->NameBlocks("", std::vector<uint32_t>(blocks * 16, seed));
  }
  // As a sequence that computes its blocks and drops all.
  void Compute(const PromptBlocks& prompt) {
    auto admission = cache_->Admit(prompt, {.blocks = std::ssize(prompt.ids)});
    ASSERT_TRUE(admission.has_value());
    std::vector<BlockRef> pages = admission->credit.Take(admission->credit.blocks());
    cache_->Insert(admission->access, prompt, pages);
  }

  SteadyClock clock_;
  std::unique_ptr<BlockPool> pool_ = *BlockPool::Create(Layout(), 20);
  std::unique_ptr<KvCacheManager> cache_ = *KvCacheManager::Create(
      *pool_, clock_, {.policy = "lru", .model_fingerprint = 1, .kv_format = "bf16"});
};

// Behind 10 blocks a token sees the last 31 tokens: blocks 8 and 9. Of them the peer or the cache
// gives the KV; the request computes none of the first `received`.
TEST_F(WindowCacheTest, AHitTakesTheBlocksThatTheNextTokenSees) {
  const PromptBlocks prompt = Prompt(1, 10);
  Compute(prompt);
  const auto computed = cache_->Admit(prompt, {.held_max = 10, .blocks = 4, .exchanges = true});
  ASSERT_TRUE(computed.has_value());
  ASSERT_EQ(computed->held.size(), 10u);
  EXPECT_FALSE(computed->held[7]);
  EXPECT_TRUE(computed->held[8]);
  EXPECT_EQ(computed->credit.blocks(), 2);
  // Others use blocks 8 and 9 now, so these count no more as a part of what a request may exchange.
  const auto shares = cache_->Admit(prompt, {.held_max = 10, .blocks = 4, .exchanges = true});
  EXPECT_EQ(shares->credit.blocks(), 4);
  // Token 320 sees none of these blocks.
  const auto received = cache_->Admit(prompt, {.held_max = 10, .blocks = 4, .received = 320});
  EXPECT_TRUE(received->held.empty());
  EXPECT_EQ(received->credit.blocks(), 4);
}

TEST_F(WindowCacheTest, APassedBlockIsExchangedForTheRightToAnother) {
  const PromptBlocks prompt = Prompt(1, 4);
  auto admission = cache_->Admit(prompt, {.blocks = 4, .exchanges = true});
  std::vector<BlockRef> pages = admission->credit.Take(4);
  cache_->Insert(admission->access, prompt, pages);
  const BlockCredit others = *pool_->Reserve(16);
  OwedBlocks owed;
  // Another sequence uses block 0: it gives no right yet, and nobody else gets it before.
  BlockRef used = pages[0].Share();
  std::vector<BlockRef> passed;
  passed.push_back(std::move(pages[0]));
  cache_->Exchange(std::move(passed), 1, admission->credit, owed);
  EXPECT_EQ(admission->credit.blocks(), 0);
  EXPECT_EQ(owed.blocks(), 1);
  used = BlockRef();
  EXPECT_FALSE(cache_->Admit(Prompt(2, 1), {.blocks = 1}).has_value());
  // It is evicted although blocks behind it are in use.
  cache_->Exchange({}, 1, admission->credit, owed);
  EXPECT_EQ(admission->credit.blocks(), 1);
  EXPECT_EQ(owed.blocks(), 0);
  EXPECT_EQ(cache_->CountLeading(prompt), 0);
}

TEST_F(WindowCacheTest, BlocksWithoutTheirParentsAreNotStored) {
  const PromptBlocks prompt = Prompt(1, 6);
  auto admission = cache_->Admit(prompt, {.blocks = 6, .exchanges = true});
  std::vector<BlockRef> pages = admission->credit.Take(6);
  for (size_t i = 0; i < 4; ++i) pages[i] = BlockRef();
  cache_->Insert(admission->access, prompt, pages);
  EXPECT_EQ(cache_->CountLeading(prompt), 0);
  EXPECT_EQ(pool_->blocks_used(), 2);
}

// Host memory has all ten blocks; the two that the next token sees come back.
TEST_F(WindowCacheTest, ARestoreBringsTheBlocksThatTheNextTokenSees) {
  const auto store =
      *TieredStore::Open({.dram_bytes = 60 * kLayout.BlockStride()}, pool_->view(),
                         [this](const BlockEvent& event) { cache_->OnStoreEvent(event); });
  store->Start();
  cache_->AttachStore(store.get());
  const PromptBlocks prompt = Prompt(1, 10);
  Compute(prompt);
  {
    std::optional<BlockCredit> all;
    ASSERT_TRUE(WaitUntil([&] { return (all = cache_->Reserve(20)).has_value(); }));
  }
  store->WaitUntilQuiet();
  ASSERT_EQ(store->Find(prompt.ids).blocks, 10u);
  auto admission = cache_->Admit(prompt, {.held_max = 10, .blocks = 4, .exchanges = true});
  ASSERT_TRUE(admission.has_value());
  ASSERT_NE(admission->restore, nullptr);
  EXPECT_EQ(admission->restore->asked(), 2u);
  EXPECT_TRUE(WaitUntil([&] { return cache_->FinishRestore(prompt, admission); }));
  ASSERT_EQ(admission->held.size(), 10u);
  EXPECT_EQ(CountPassed(admission->held), 8u);
  EXPECT_EQ(admission->credit.blocks(), 2);
  EXPECT_EQ(cache_->CountLeading(prompt), 10) << "the store still has the others";
  admission.reset();
  cache_->AttachStore(nullptr);
  store->Stop();
}

// A restore that brings block 8 without block 9 is of no use: token 144 sees block 7, too.
TEST_F(WindowCacheTest, APartOfARestoreIsNotHeldWithoutWhatItsNextTokenSees) {
  const PromptBlocks prompt = Prompt(1, 10);
  std::optional<CacheAdmission> admission =
      cache_->Admit(prompt, {.held_max = 10, .blocks = 4, .exchanges = true});
  admission->held.resize(8);
  admission->restore = std::make_shared<CacheRestore>(2);
  RestoreResult result{.whole = 1, .pages = admission->credit.Take(2)};
  admission->restore->Finish(std::move(result));
  ASSERT_TRUE(cache_->FinishRestore(prompt, admission));
  ASSERT_TRUE(admission.has_value());
  EXPECT_TRUE(admission->held.empty());
  EXPECT_EQ(admission->credit.blocks(), 4);
}

}  // namespace
}  // namespace penstock
