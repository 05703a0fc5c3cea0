// Look-ups in a model in which some layers have a window: prefixes whose blocks are there, and
// whose rows may not be (docs/adr/0060-window-rows.md).

#include <gtest/gtest.h>

#include <cstring>

#include "base/clock.h"
#include "kernels/page_copier.h"
#include "kvstore/manager/kv_cache_manager.h"
#include "tests/support/wait_until.h"

namespace penstock {
namespace {

// Layers 0 and 2 have a window of 32 tokens: behind n blocks, the last two are seen.
KvLayout Layout() {
  KvLayout layout{.layers = 3, .kv_heads = 1, .head_dim = 64, .block_tokens = 16};
  layout.group.window = 32;
  layout.group.layers.set(0);
  layout.group.layers.set(2);
  return layout;
}

class WindowHitsTest : public ::testing::Test {
 protected:
  static constexpr int64_t kBlocks = 24, kRows = 8;

  PromptBlocks Prompt(uint32_t seed, size_t blocks) const {
    return cache_->NameBlocks("", std::vector<uint32_t>(blocks * 16, seed));
  }
  std::optional<CacheAdmission> Admit(const PromptBlocks& prompt, int64_t received = 0) {
    const int64_t blocks = std::ssize(prompt.ids);
    return cache_->Admit(prompt, {.held_max = blocks,
                                  .blocks = blocks,
                                  .received = received,
                                  .rows = Layout().RowsAtOnce(blocks * 16, 16)});
  }
  // As a sequence that computes the prompt block by block, and ends.
  void Compute(const PromptBlocks& prompt, uint8_t fill) {
    std::optional<CacheAdmission> admission;
    ASSERT_TRUE(WaitUntil([&] { return (admission = Admit(prompt)).has_value(); }));
    ASSERT_TRUE(WaitUntil([&] { return cache_->FinishRestore(prompt, admission); }));
    std::vector<BlockRef> blocks = std::move(admission->held);
    const size_t held = blocks.size();
    for (BlockRef& block : admission->credit.Take(std::ssize(prompt.ids) - std::ssize(blocks))) {
      blocks.push_back(std::move(block));
    }
    const KvLayout layout = Layout();
    for (size_t i = held; i < blocks.size(); ++i) {
      const auto begin = static_cast<int64_t>(i) * 16;
      admission->credit.MoveWindow(blocks, layout.FirstGroupBlock(begin),
                                   static_cast<int64_t>(i) + 1);
      for (int32_t layer = 0; layer < 3; ++layer) {
        std::memset(pool_->view().Layer(blocks[i].id(), layer), fill + static_cast<int>(i),
                    layout.LayerBytes());
      }
      cache_->Insert(admission->access, prompt, std::span(blocks).first(i + 1));
    }
  }
  // Requests of other prompts take all rows.
  void TakeAllRows() {
    for (uint32_t seed = 100; seed < 104; ++seed) Compute(Prompt(seed, 2), 1);
  }
  // True if the block has the KV of all layers that Compute gave it.
  bool IsWhole(const BlockRef& block, uint8_t fill) const {
    std::vector<std::byte> page(Layout().PayloadBytes());
    const uint32_t id = block.id();
    ReadPages(pool_->view(), {&id, 1}, 0, page.size(), page.data());
    return std::all_of(page.begin(), page.end(), [&](std::byte b) { return b == std::byte(fill); });
  }

  SteadyClock clock_;
  std::unique_ptr<BlockPool> pool_ = *BlockPool::Create(Layout(), kBlocks, kRows);
  std::unique_ptr<KvCacheManager> cache_ = *KvCacheManager::Create(
      *pool_, clock_, {.policy = "lru", .model_fingerprint = 1, .kv_format = "bf16"});
};

TEST_F(WindowHitsTest, AHitHoldsTheRowsOfItsLastBlocks) {
  const PromptBlocks prompt = Prompt(1, 8);
  Compute(prompt, 10);
  const auto hit = Admit(prompt);
  ASSERT_TRUE(hit.has_value());
  ASSERT_EQ(hit->held.size(), 8u);
  for (size_t i = 0; i < 8; ++i) EXPECT_EQ(hit->held[i].holds_row(), i >= 6) << i;
  EXPECT_TRUE(IsWhole(hit->held[7], 17));
  EXPECT_EQ(hit->credit.blocks(), 0);
}

TEST_F(WindowHitsTest, WithoutItsRowsAPrefixIsFoundOnlyBehindTheWindow) {
  const PromptBlocks prompt = Prompt(1, 8);
  Compute(prompt, 10);
  TakeAllRows();
  {
    const auto miss = Admit(prompt);
    ASSERT_TRUE(miss.has_value());
    EXPECT_TRUE(miss->held.empty());
    EXPECT_EQ(miss->credit.blocks(), 8);
  }
  // What follows is received: the next token sees none of these blocks in layers with a window.
  const auto received = Admit(prompt, 16 * 20);
  ASSERT_TRUE(received.has_value());
  ASSERT_EQ(received->held.size(), 8u);
  EXPECT_FALSE(received->held[7].holds_row());
}

TEST_F(WindowHitsTest, ComputedAgainItIsFoundAgain) {
  const PromptBlocks prompt = Prompt(1, 8);
  Compute(prompt, 10);
  TakeAllRows();
  Compute(prompt, 10);
  const auto hit = Admit(prompt);
  ASSERT_EQ(hit->held.size(), 8u);
  EXPECT_TRUE(IsWhole(hit->held[7], 17));
}

// The rows at the end of a prefix that two prompts share were missed once. They are kept then.
TEST_F(WindowHitsTest, ASharedPrefixKeepsItsRows) {
  const auto with_end = [&](uint32_t end) {
    std::vector<uint32_t> tokens(4 * 16, 7);
    tokens.resize(8 * 16, end);
    return cache_->NameBlocks("", tokens);
  };
  Compute(with_end(20), 10);
  Compute(with_end(21), 10);  // finds four blocks, and not their rows
  Compute(Prompt(50, 4), 1);
  const auto hit = Admit(with_end(22));
  ASSERT_TRUE(hit.has_value());
  EXPECT_EQ(hit->held.size(), 4u);
}

TEST_F(WindowHitsTest, AQuotaIsRefusedBeforeRowsRunOut) {
  const PromptBlocks one = Prompt(1, 8), two = Prompt(2, 8);
  const auto first = Admit(one);  // rows for four blocks
  auto second = Admit(two);
  ASSERT_TRUE(first.has_value() && second.has_value());
  EXPECT_FALSE(Admit(Prompt(3, 8)).has_value());
  second.reset();
  EXPECT_TRUE(Admit(Prompt(3, 8)).has_value());
}

// A lower tier has some blocks without their rows. Behind those that have them a request goes on.
TEST_F(WindowHitsTest, LowerTiersKnowWhichBlocksAreWhole) {
  auto store = *TieredStore::Open({.dram_bytes = 64 * Layout().BlockStride()}, pool_->view(),
                                  [this](const BlockEvent& event) { cache_->OnStoreEvent(event); });
  cache_->AttachStore(store.get());
  store->Start();
  const PromptBlocks prompt = Prompt(1, 8);
  Compute(prompt, 10);
  for (uint32_t seed = 2; seed < 6; ++seed) {  // pushes it out, the last rows with it
    Compute(Prompt(seed, 6), 1);
    store->WaitUntilQuiet();
  }
  const FindResult found = store->Find(prompt.ids);
  ASSERT_EQ(found.blocks, 8u);
  EXPECT_FALSE(found.whole[0]);
  EXPECT_TRUE(found.whole[7]);
  {
    std::optional<CacheAdmission> hit;
    ASSERT_TRUE(WaitUntil([&] { return (hit = Admit(prompt)).has_value(); }));
    ASSERT_TRUE(WaitUntil([&] { return cache_->FinishRestore(prompt, hit); }));
    ASSERT_TRUE(hit.has_value());
    ASSERT_EQ(hit->held.size(), 8u);
    EXPECT_TRUE(IsWhole(hit->held[6], 16));
    EXPECT_TRUE(IsWhole(hit->held[7], 17));
    EXPECT_FALSE(IsWhole(hit->held[0], 10));
  }
  // A page that needs its row takes no copy without one.
  std::optional<BlockCredit> credit;
  ASSERT_TRUE(WaitUntil([&] { return (credit = cache_->Reserve(1)).has_value(); }));
  credit->SetQuota(pool_->ReserveRows(1));
  std::vector<BlockRef> page = credit->Take(1);
  credit->HoldRow(page[0]);
  std::atomic<int> whole{-1};
  store->Restore({prompt.ids[0]}, std::move(page),
                 [&](const RestoreResult& result) { whole = static_cast<int>(result.whole); });
  EXPECT_TRUE(WaitUntil([&] { return whole >= 0; }));
  EXPECT_EQ(whole, 0);
  cache_->AttachStore(nullptr);
  store->Stop();
}

}  // namespace
}  // namespace penstock
