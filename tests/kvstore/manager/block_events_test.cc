#include "kvstore/manager/block_events.h"

#include <gtest/gtest.h>

#include <map>
#include <random>

#include "kvstore/manager/kv_cache_manager.h"

namespace penstock {
namespace {

constexpr KvLayout kLayout{.layers = 1, .kv_heads = 1, .head_dim = 8, .block_tokens = 16};

std::vector<BlockId> IdsOf(const std::string& bytes) {
  std::vector<BlockId> ids(bytes.size() / 16);
  for (size_t i = 0; i < ids.size(); ++i) {
    std::copy_n(bytes.begin() + static_cast<std::ptrdiff_t>(i * 16), 16, ids[i].bytes.begin());
  }
  return ids;
}

// A router's knowledge after the events that it has read.
class Mirror {
 public:
  void Read(BlockSubscriber& subscriber) {
    for (auto batch = subscriber.Take(); !batch.events.empty(); batch = subscriber.Take()) {
      for (const v1::BlockEvent& event : batch.events) Apply(event);
    }
  }
  void Apply(const v1::BlockEvent& event) {
    if (event.has_stored()) {
      BlockId parent = IdsOf(event.stored().parent()).at(0);
      for (const BlockId& id : IdsOf(event.stored().ids())) {
        EXPECT_TRUE(blocks.emplace(id, event.stored().tier()).second) << "stored twice";
        parents[id] = parent;
        parent = id;
      }
    } else if (event.has_removed()) {
      for (const BlockId& id : IdsOf(event.removed().ids())) EXPECT_EQ(blocks.erase(id), 1u);
    } else if (event.has_moved()) {
      for (const BlockId& id : IdsOf(event.moved().ids())) blocks.at(id) = event.moved().tier();
    }
  }
  std::map<BlockId, v1::KvTier> blocks;
  std::map<BlockId, BlockId> parents;
};

class BlockEventsTest : public ::testing::Test {
 protected:
  PromptBlocks Prompt(uint32_t seed, int blocks) {
    std::vector<uint32_t> tokens(static_cast<size_t>(blocks) * 16 + 3, seed);
    return cache_->NameBlocks("", tokens);
  }
  void Serve(const PromptBlocks& prompt) {
    const auto blocks = static_cast<int64_t>(prompt.ids.size());
    auto admission = cache_->Admit(prompt, {.held_max = blocks, .blocks = blocks});
    ASSERT_TRUE(admission.has_value());
    std::vector<BlockRef> pages = std::move(admission->held);
    for (BlockRef& page : admission->credit.Take(admission->credit.blocks())) {
      pages.push_back(std::move(page));
    }
    cache_->Insert(admission->access, prompt, pages);
  }
  void Announce(const BlockName& name, std::optional<Tier> tier) {
    cache_->OnStoreEvent({.name = name, .tier = tier});
  }

  ManualClock clock_;
  std::unique_ptr<BlockPool> pool_ = *BlockPool::Create(kLayout, 20);
  std::unique_ptr<KvCacheManager> cache_ = *KvCacheManager::Create(
      *pool_, clock_, {.policy = "lru", .model_fingerprint = 1, .kv_format = "bf16"});
};

TEST_F(BlockEventsTest, SnapshotThenChanges) {
  const PromptBlocks first = Prompt(1, 4);
  Serve(first);
  const auto subscriber = cache_->Subscribe();
  EXPECT_TRUE(subscriber->in_snapshot());
  auto batch = subscriber->Take();
  EXPECT_TRUE(batch.snapshot);
  ASSERT_EQ(batch.events.size(), 1u);
  EXPECT_EQ(IdsOf(batch.events[0].stored().ids()), first.ids);
  EXPECT_EQ(IdsOf(batch.events[0].stored().parent()).at(0), first.root);
  EXPECT_EQ(batch.events[0].stored().tier(), v1::DEVICE);
  EXPECT_FALSE(subscriber->in_snapshot());
  Serve(Prompt(2, 2));
  batch = subscriber->Take();
  EXPECT_FALSE(batch.snapshot);
  ASSERT_EQ(batch.events.size(), 1u);
  EXPECT_EQ(IdsOf(batch.events[0].stored().ids()).size(), 2u);
  EXPECT_TRUE(subscriber->Take().events.empty());
}

TEST_F(BlockEventsTest, AMirrorKnowsWhatTheCacheHasWhateverHappens) {
  std::mt19937 random(5);
  Mirror early, late;
  const auto from_the_start = cache_->Subscribe();
  std::shared_ptr<BlockSubscriber> from_later;
  for (int i = 0; i < 500; ++i) {
    Serve(Prompt(1 + random() % 7, 1 + static_cast<int>(random() % 8)));
    if (i == 100) from_later = cache_->Subscribe();
    if (random() % 3 == 0) early.Read(*from_the_start);
  }
  early.Read(*from_the_start);
  late.Read(*from_later);
  EXPECT_EQ(early.blocks, late.blocks);
  for (const auto& [id, tier] : early.blocks) EXPECT_EQ(tier, v1::DEVICE);
  EXPECT_EQ(early.blocks.size(), static_cast<size_t>(pool_->blocks_cached()));
  const PromptBlocks prompt = Prompt(3, 8);
  size_t leading = 0;
  while (leading < 8 && early.blocks.contains(prompt.ids[leading])) ++leading;
  EXPECT_EQ(cache_->Admit(prompt, {.held_max = 8, .blocks = 8})->held.size(), leading);
}

TEST_F(BlockEventsTest, ATierBelowIsToldOnlyWhenItCanServe) {
  const PromptBlocks prompt = Prompt(1, 2);
  Mirror mirror;
  const auto subscriber = cache_->Subscribe();
  Serve(prompt);
  const BlockName head{prompt.ids[0], prompt.root}, tail{prompt.ids[1], prompt.ids[0]};
  Announce(head, Tier::kDram);  // A copy of what the device has: nothing new.
  mirror.Read(*subscriber);
  EXPECT_EQ(mirror.blocks.at(head.id), v1::DEVICE);
  EXPECT_TRUE(cache_->Reserve(20).has_value());  // Evicts all.
  mirror.Read(*subscriber);
  EXPECT_EQ(mirror.blocks.at(head.id), v1::DRAM);
  EXPECT_FALSE(mirror.blocks.contains(tail.id));
  Announce(tail, Tier::kDram);
  Announce(head, Tier::kNvme);
  mirror.Read(*subscriber);
  EXPECT_EQ(mirror.blocks.at(tail.id), v1::DRAM);
  EXPECT_EQ(mirror.parents.at(tail.id), head.id);
  EXPECT_EQ(mirror.blocks.at(head.id), v1::NVME);
  Serve(prompt);  // Computed again, or restored: on the device it is faster.
  mirror.Read(*subscriber);
  EXPECT_EQ(mirror.blocks.at(head.id), v1::DEVICE);
  Announce(head, std::nullopt);  // Still on the device.
  mirror.Read(*subscriber);
  EXPECT_EQ(mirror.blocks.at(head.id), v1::DEVICE);
  EXPECT_TRUE(cache_->Reserve(20).has_value());
  Announce(tail, std::nullopt);
  mirror.Read(*subscriber);
  EXPECT_TRUE(mirror.blocks.empty());
}

TEST_F(BlockEventsTest, ASlowReaderIsLostInsteadOfMissingSomething) {
  const auto subscriber = cache_->Subscribe();
  std::vector<BlockId> many(BlockSubscriber::kPendingMax / 2);
  subscriber->Add(StoredEvent({}, many, v1::DEVICE));
  subscriber->Add(StoredEvent({}, many, v1::DEVICE));
  EXPECT_FALSE(subscriber->lost());
  EXPECT_FALSE(subscriber->Take().events.empty());  // Reading makes room.
  subscriber->Add(RemovedEvent(many));
  EXPECT_FALSE(subscriber->lost());
  subscriber->Add(RemovedEvent({many.data(), 1}));
  EXPECT_TRUE(subscriber->lost());
  EXPECT_TRUE(subscriber->Take().events.empty());
}

}  // namespace
}  // namespace penstock
