#include "kvstore/tiers/tiered_store.h"

#include <random>

#include "tests/kvstore/tiers/store_fixture.h"

namespace penstock {
namespace {

class TieredStoreTest : public testing::Test {
 protected:
  void Open(uint64_t dram_blocks, size_t spills_max = 64) {
    auto store =
        TieredStore::Open({.dram_bytes = dram_blocks * pages_.stride(), .spills_max = spills_max},
                          pages_.view(), events_.Callback(), {.on_filled = [this](auto slot) {
                            if (filled_++ == damaged_) slot[slot.size() / 2] ^= std::byte{16};
                          }});
    ASSERT_TRUE(store.ok()) << store.status();
    store_ = *std::move(store);
  }
  void Spill(uint32_t n) {
    ASSERT_TRUE(store_->Spill({.name = ChainName(n), .page = pages_.Filled(n)}));
  }
  // Blocks [first, first + count) into fresh pages; checks the bytes of those that are whole.
  size_t RestoredBlocks(uint32_t first, uint32_t count) {
    RestoreAnswer answer;
    store_->Restore(ChainIds(first, count), pages_.Take(count), answer.Callback());
    const RestoreResult result = answer.Wait();
    EXPECT_EQ(result.pages.size(), count);
    for (uint32_t i = 0; i < result.whole; ++i) {
      EXPECT_TRUE(pages_.Holds(result.pages[i], first + i)) << first + i;
    }
    return result.whole;
  }

  Pages pages_{64};
  EventLog events_;
  std::optional<uint32_t> damaged_;  // the number of the copy in which a bit flips
  uint32_t filled_ = 0;              // copies; the store's thread counts
  std::unique_ptr<TieredStore> store_;
};

TEST_F(TieredStoreTest, GivesBackWhatWasSpilled) {
  Open(16);
  store_->Start();
  for (uint32_t n = 0; n < 10; ++n) Spill(n);
  store_->WaitUntilQuiet();
  EXPECT_EQ(pages_.used(), 0);
  const FindResult found = store_->Find(ChainIds(0, 12));
  EXPECT_EQ(found.blocks, 10u);
  EXPECT_EQ(found.dram, 10u);
  EXPECT_EQ(RestoredBlocks(0, 12), 10u);
  EXPECT_EQ(store_->stats().dram.restores, 10u);
  EXPECT_EQ(store_->stats().misses, 2u);
  EXPECT_EQ(pages_.used(), 0);
}

TEST_F(TieredStoreTest, AHoleEndsWhatIsFound) {
  Open(16);
  store_->Start();
  for (const uint32_t n : {0, 1, 3}) Spill(n);
  store_->WaitUntilQuiet();
  EXPECT_EQ(store_->Find(ChainIds(0, 4)).blocks, 2u);
  EXPECT_EQ(RestoredBlocks(0, 4), 2u);
}

TEST_F(TieredStoreTest, TheOldestGoesFirstAndEventsSayIt) {
  Open(4);
  store_->Start();
  for (uint32_t n = 0; n < 4; ++n) Spill(n);
  store_->WaitUntilQuiet();
  store_->Touch(ChainIds(0, 1));
  Spill(4);
  store_->WaitUntilQuiet();
  EXPECT_EQ(store_->Find(ChainIds(0, 1)).blocks, 1u);
  EXPECT_EQ(store_->Find(ChainIds(1, 1)).blocks, 0u);
  EXPECT_EQ(events_.tiers(), AsMap(store_->Snapshot()));
  EXPECT_EQ(events_.count(), 6u);  // five stored, one removed
  EXPECT_EQ(store_->stats().dram.evictions[static_cast<size_t>(EvictionReason::kCapacity)], 1u);
}

TEST_F(TieredStoreTest, RefusesSpillsAtTheDoor) {
  Open(16, /*spills_max=*/2);  // Not started: nobody takes them from the line.
  Spill(0);
  Spill(1);
  BlockRef page = pages_.Filled(2);
  EXPECT_FALSE(store_->Spill({.name = ChainName(2), .page = page.Share()}));
  EXPECT_EQ(store_->stats().spills_refused, 1u);
  EXPECT_EQ(pages_.used(), 3);
  store_->Stop();
  EXPECT_EQ(pages_.used(), 1);
}

TEST_F(TieredStoreTest, SwapsASequenceOutAndIn) {
  Open(8);
  store_->Start();
  for (uint32_t n = 0; n < 8; ++n) Spill(n);
  store_->WaitUntilQuiet();
  std::vector<BlockRef> pages;
  for (uint32_t n = 100; n < 104; ++n) pages.push_back(pages_.Filled(n));
  auto ticket = store_->SwapOut(pages);
  ASSERT_TRUE(ticket.ok()) << ticket.status();
  store_->WaitUntilQuiet();
  EXPECT_EQ(pages_.used(), 0);
  EXPECT_EQ(store_->stats().dram.blocks, 4u);
  EXPECT_EQ(events_.tiers(), AsMap(store_->Snapshot()));
  for (uint32_t n = 20; n < 30; ++n) Spill(n);  // does not touch what is swapped out
  RestoreAnswer answer;
  store_->SwapIn(*std::move(ticket), pages_.Take(4), answer.Callback());
  const RestoreResult result = answer.Wait();
  ASSERT_EQ(result.whole, 4u);
  for (uint32_t i = 0; i < 4; ++i) EXPECT_TRUE(pages_.Holds(result.pages[i], 100 + i));
  store_->WaitUntilQuiet();
  EXPECT_EQ(store_->stats().swap_slots, 0u);
}

TEST_F(TieredStoreTest, AFlippedBitIsAMissAndACounter) {
  damaged_ = 3;
  Open(16);
  store_->Start();
  for (uint32_t n = 0; n < 8; ++n) Spill(n);
  store_->WaitUntilQuiet();
  EXPECT_EQ(store_->Find(ChainIds(0, 8)).blocks, 8u);
  EXPECT_EQ(RestoredBlocks(0, 8), 3u);
  EXPECT_EQ(RestoredBlocks(4, 4), 4u);
  EXPECT_EQ(store_->Find(ChainIds(0, 8)).blocks, 3u) << "found once, and dropped";
  const StoreStats stats = store_->stats();
  EXPECT_EQ(stats.dram_corrupt, 1u);
  EXPECT_EQ(stats.dram.restores, 7u + 4u);
  EXPECT_EQ(stats.dram.evictions[static_cast<size_t>(EvictionReason::kCorrupt)], 1u);
  store_->WaitUntilQuiet();
  EXPECT_EQ(events_.tiers(), AsMap(store_->Snapshot()));
  EXPECT_EQ(pages_.used(), 0);
}

TEST_F(TieredStoreTest, ASwappedSequenceWithAFlippedBitDoesNotComeBackWhole) {
  damaged_ = 2;
  Open(16);
  store_->Start();
  std::vector<BlockRef> pages;
  for (uint32_t n = 0; n < 4; ++n) pages.push_back(pages_.Filled(n));
  auto ticket = store_->SwapOut(pages);
  ASSERT_TRUE(ticket.ok()) << ticket.status();
  RestoreAnswer answer;
  store_->SwapIn(*std::move(ticket), pages_.Take(4), answer.Callback());
  const RestoreResult result = answer.Wait();
  EXPECT_EQ(result.whole, 2u);
  EXPECT_EQ(result.pages.size(), 4u);
  store_->WaitUntilQuiet();
  EXPECT_EQ(store_->stats().dram_corrupt, 1u);
  EXPECT_EQ(store_->stats().swap_slots, 0u);
}

TEST_F(TieredStoreTest, SwapsAreLimitedAndRefusedWhole) {
  Open(8);
  store_->Start();
  std::vector<BlockRef> pages = pages_.Take(5);
  const auto refused = store_->SwapOut(pages);
  EXPECT_EQ(refused.status().code(), absl::StatusCode::kResourceExhausted);
  EXPECT_EQ(pages.size(), 5u);
  pages.pop_back();
  {
    auto ticket = store_->SwapOut(pages);
    ASSERT_TRUE(ticket.ok()) << ticket.status();
    EXPECT_TRUE(pages.empty());
  }
  store_->WaitUntilQuiet();
  EXPECT_EQ(store_->stats().swap_slots, 0u);  // dropped with its ticket
}

TEST_F(TieredStoreTest, ClearForgetsBlocksAndSaysSo) {
  Open(8);
  store_->Start();
  for (uint32_t n = 0; n < 8; ++n) Spill(n);
  store_->WaitUntilQuiet();
  store_->Clear([] {});
  store_->WaitUntilQuiet();
  EXPECT_EQ(store_->Find(ChainIds(0, 8)).blocks, 0u);
  EXPECT_TRUE(events_.tiers().empty());
}

TEST_F(TieredStoreTest, StopAnswersEverybodyAndGivesPagesBack) {
  Open(8);
  for (uint32_t n = 0; n < 4; ++n) Spill(n);
  RestoreAnswer before;
  store_->Restore(ChainIds(0, 2), pages_.Take(2), before.Callback());
  std::vector<BlockRef> pages = pages_.Take(2);
  auto ticket = store_->SwapOut(pages);
  ASSERT_TRUE(ticket.ok());
  RestoreAnswer swap;
  store_->SwapIn(*std::move(ticket), pages_.Take(2), swap.Callback());
  store_->Stop();
  EXPECT_EQ(before.Wait().whole, 0u);
  EXPECT_EQ(swap.Wait().whole, 0u);
  RestoreAnswer after;
  store_->Restore(ChainIds(0, 2), pages_.Take(2), after.Callback());
  EXPECT_EQ(after.Wait().whole, 0u);
  EXPECT_EQ(pages_.used(), 0);
  EXPECT_FALSE(store_->Spill({.name = ChainName(9), .page = pages_.Filled(9)}));
}

TEST_F(TieredStoreTest, WithoutTiersNothingIsKept) {
  Open(0);
  store_->Start();
  EXPECT_FALSE(store_->Spill({.name = ChainName(0), .page = pages_.Filled(0)}));
  EXPECT_EQ(store_->Find(ChainIds(0, 1)).blocks, 0u);
  EXPECT_EQ(RestoredBlocks(0, 1), 0u);
  std::vector<BlockRef> pages = pages_.Take(1);
  EXPECT_EQ(store_->SwapOut(pages).status().code(), absl::StatusCode::kFailedPrecondition);
}

TEST_F(TieredStoreTest, SaysWhatDoesNotFit) {
  const auto store = TieredStore::Open({.dram_bytes = 100}, pages_.view(), {});
  EXPECT_EQ(store.status().code(), absl::StatusCode::kInvalidArgument);
}

// Random calls against what must hold of every answer: the bytes are right, events agree with the
// snapshot, no page is lost.
TEST_F(TieredStoreTest, RandomCallsGiveRightBytes) {
  Open(12);
  store_->Start();
  std::mt19937 random(7);
  std::vector<SwapTicket> tickets;
  for (int i = 0; i < 3000; ++i) {
    const uint32_t n = random() % 24;
    switch (random() % 6) {
      case 0:
      case 1:
        store_->Spill({.name = ChainName(n), .page = pages_.Filled(n)});
        break;
      case 2:
        RestoredBlocks(n, 1 + random() % 6);
        break;
      case 3:
        store_->Touch(ChainIds(n, 3));
        break;
      case 4: {
        std::vector<BlockRef> pages;
        for (uint32_t k = 0; k < 3; ++k) pages.push_back(pages_.Filled(1000 + k));
        auto ticket = store_->SwapOut(pages);
        if (ticket.ok()) tickets.push_back(*std::move(ticket));
        break;
      }
      case 5: {
        if (tickets.empty()) break;
        RestoreAnswer answer;
        store_->SwapIn(std::move(tickets.back()), pages_.Take(3), answer.Callback());
        tickets.pop_back();
        const RestoreResult result = answer.Wait();
        ASSERT_EQ(result.whole, 3u);
        for (uint32_t k = 0; k < 3; ++k) EXPECT_TRUE(pages_.Holds(result.pages[k], 1000 + k));
        break;
      }
    }
  }
  tickets.clear();
  store_->WaitUntilQuiet();
  EXPECT_EQ(events_.tiers(), AsMap(store_->Snapshot()));
  EXPECT_EQ(pages_.used(), 0);
  EXPECT_GT(store_->stats().dram.restores, 100u);
}

}  // namespace
}  // namespace penstock
