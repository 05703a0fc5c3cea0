#include "worker/events/kv_event_source.h"

#include <gtest/gtest.h>

#include <map>
#include <random>
#include <set>

#include "kvstore/manager/kv_cache_manager.h"

namespace penstock {
namespace {

constexpr KvLayout kLayout{.layers = 1, .kv_heads = 1, .head_dim = 8, .block_tokens = 16};
constexpr int64_t kPool = 20;

// An index outside the cluster: the blocks of each medium, and the prompt that leads to each block.
class Index {
 public:
  void Apply(const std::vector<KvEvent>& events) {
    for (const KvEvent& event : events) std::visit(*this, event);
  }
  void operator()(const KvBlocksCleared&) { *this = {.clears = clears + 1}; }
  void operator()(const KvBlocksStored& stored) {
    EXPECT_LE(stored.hashes.size(), KvEventSource::kBlocksMax);
    if (stored.tokens.empty()) return Place(stored);
    EXPECT_EQ(stored.tokens.size(), stored.hashes.size() * 16);
    std::vector<uint32_t> prompt;
    if (stored.parent) prompt = prompts.at(*stored.parent);
    for (size_t i = 0; i < stored.hashes.size(); ++i) {
      prompt.insert(prompt.end(), stored.tokens.begin() + static_cast<std::ptrdiff_t>(i * 16),
                    stored.tokens.begin() + static_cast<std::ptrdiff_t>(i * 16 + 16));
      prompts[stored.hashes[i]] = prompt;
    }
    Place(stored);
  }
  void operator()(const KvBlocksRemoved& removed) {
    for (const uint64_t hash : removed.hashes) {
      EXPECT_EQ(places[hash].erase(removed.medium), 1u) << "it was not there";
      if (places[hash].empty()) places.erase(hash);
    }
  }
  // The hashes of blocks in `medium`.
  std::set<uint64_t> In(KvMedium medium) const {
    std::set<uint64_t> found;
    for (const auto& [hash, media] : places) {
      if (media.contains(medium)) found.insert(hash);
    }
    return found;
  }

  int clears = 0;
  std::map<uint64_t, std::set<KvMedium>> places = {};
  std::map<uint64_t, std::vector<uint32_t>> prompts = {};

 private:
  void Place(const KvBlocksStored& stored) {
    for (const uint64_t hash : stored.hashes) {
      EXPECT_TRUE(places[hash].insert(stored.medium).second) << "stored twice";
    }
  }
};

class KvEventSourceTest : public ::testing::Test {
 protected:
  static std::vector<uint32_t> Tokens(uint32_t seed, int blocks) {
    std::vector<uint32_t> tokens(static_cast<size_t>(blocks) * 16 + 3);
    for (size_t i = 0; i < tokens.size(); ++i) tokens[i] = seed * 10'000 + static_cast<uint32_t>(i);
    return tokens;
  }
  PromptBlocks Prompt(uint32_t seed, int blocks, const std::string& salt = "") {
    return cache_->NameBlocks(salt, Tokens(seed, blocks));
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
  void EvictAll() { EXPECT_TRUE(cache_->Reserve(kPool).has_value()); }
  void Announce(const PromptBlocks& prompt, size_t block, std::optional<Tier> tier) {
    const BlockId parent = block == 0 ? prompt.root : prompt.ids[block - 1];
    cache_->OnStoreEvent({.name = {prompt.ids[block], parent}, .tier = tier});
  }
  static std::set<uint64_t> Hashes(const PromptBlocks& prompt) {
    std::set<uint64_t> hashes;
    for (const BlockId& id : prompt.ids) hashes.insert(ShortHash(id));
    return hashes;
  }
  static bool Begins(const std::vector<uint32_t>& all, const std::vector<uint32_t>& with) {
    return with.size() <= all.size() && std::equal(with.begin(), with.end(), all.begin());
  }

  ManualClock clock_;
  std::unique_ptr<BlockPool> pool_ = *BlockPool::Create(kLayout, kPool);
  std::unique_ptr<KvCacheManager> cache_ = *KvCacheManager::Create(
      *pool_, clock_,
      {.policy = "lru", .model_fingerprint = 1, .kv_format = "bf16", .keep_tokens = true});
  std::shared_ptr<BlockSubscriber> subscriber_;
  KvEventSource source_{[this] { return subscriber_ = cache_->Subscribe(); }, *cache_->tokens()};
  Index index_;
};

TEST_F(KvEventSourceTest, BeginsWithAClearedIndexAndAllThatIsCached) {
  const PromptBlocks prompt = Prompt(1, 4);
  Serve(prompt);
  const std::vector<KvEvent> events = source_.Take();
  ASSERT_EQ(events.size(), 2u);
  EXPECT_TRUE(std::holds_alternative<KvBlocksCleared>(events[0]));
  const auto& stored = std::get<KvBlocksStored>(events[1]);
  EXPECT_EQ(stored.parent, std::nullopt);
  EXPECT_EQ(stored.tokens, prompt.tokens);
  EXPECT_EQ(stored.hashes.size(), 4u);
  EXPECT_TRUE(source_.Take().empty());
}

TEST_F(KvEventSourceTest, ALongerPromptNamesItsParent) {
  Serve(Prompt(1, 2));
  source_.Take();
  const PromptBlocks longer = Prompt(1, 5);
  Serve(longer);
  const std::vector<KvEvent> events = source_.Take();
  ASSERT_EQ(events.size(), 1u);
  const auto& stored = std::get<KvBlocksStored>(events[0]);
  EXPECT_EQ(stored.parent, ShortHash(longer.ids[1]));
  EXPECT_EQ(stored.hashes.size(), 3u);
  EXPECT_EQ(stored.tokens, std::vector<uint32_t>(longer.tokens.begin() + 32, longer.tokens.end()));
}

TEST_F(KvEventSourceTest, AnswersExtendThePrompt) {
  PromptBlocks prompt = Prompt(1, 1);
  const std::vector<uint32_t> all = Tokens(1, 3);
  cache_->Extend(prompt, std::span(all).subspan(16));
  EXPECT_EQ(prompt.ids, Prompt(1, 3).ids);
  EXPECT_EQ(prompt.tokens, Prompt(1, 3).tokens);
}

TEST_F(KvEventSourceTest, TheTokensOfASaltedPromptAreSecret) {
  PromptBlocks salted = Prompt(1, 3, "a tenant's salt");
  cache_->Extend(salted, Tokens(2, 1));
  PromptBlocks shorter_than_a_block = Prompt(1, 0, "a tenant's salt");
  cache_->Extend(shorter_than_a_block, Tokens(3, 2));
  Serve(salted);
  Serve(shorter_than_a_block);
  index_.Apply(source_.Take());
  EXPECT_EQ(index_.In(KvMedium::kGpu).size(), 6u);
  EXPECT_TRUE(index_.prompts.empty());
}

TEST_F(KvEventSourceTest, LossyKvIsNotOfferedAsExact) {
  const PromptBlocks lossy = cache_->NameBlocks("", Tokens(1, 2), "i8");
  Serve(lossy);
  index_.Apply(source_.Take());
  EXPECT_EQ(index_.In(KvMedium::kGpu), Hashes(lossy));
  EXPECT_TRUE(index_.prompts.empty());
}

TEST_F(KvEventSourceTest, ABlockThatMovesIsStoredBeforeItIsRemoved) {
  const PromptBlocks prompt = Prompt(1, 3);
  Serve(prompt);
  for (size_t i = 0; i < 3; ++i) Announce(prompt, i, Tier::kDram);
  source_.Take();
  EvictAll();
  const std::vector<KvEvent> events = source_.Take();
  ASSERT_EQ(events.size(), 2u);
  const auto& stored = std::get<KvBlocksStored>(events[0]);
  EXPECT_EQ(stored.medium, KvMedium::kCpu);
  EXPECT_EQ(stored.tokens, prompt.tokens);
  const auto& removed = std::get<KvBlocksRemoved>(events[1]);
  EXPECT_EQ(removed.medium, KvMedium::kGpu);
  EXPECT_EQ(removed.hashes, stored.hashes);
}

TEST_F(KvEventSourceTest, TheTiersBelowHaveTokensAlsoWhenTheyAreLate) {
  const PromptBlocks prompt = Prompt(1, 2);
  Serve(prompt);
  EvictAll();
  Announce(prompt, 0, Tier::kDram);
  Announce(prompt, 1, Tier::kNvme);
  index_.Apply(source_.Take());
  EXPECT_EQ(index_.In(KvMedium::kCpu), (std::set{ShortHash(prompt.ids[0])}));
  EXPECT_EQ(index_.In(KvMedium::kDisk), (std::set{ShortHash(prompt.ids[1])}));
  EXPECT_EQ(index_.prompts.at(ShortHash(prompt.ids[1])), prompt.tokens);
  Announce(prompt, 1, std::nullopt);
  index_.Apply(source_.Take());
  EXPECT_TRUE(index_.In(KvMedium::kDisk).empty());
}

TEST_F(KvEventSourceTest, ABlockIsAnnouncedOnceItsParentIs) {
  const PromptBlocks prompt = Prompt(1, 4);
  Serve(prompt);
  EvictAll();
  source_.Take();
  for (const size_t block : {3u, 2u, 1u}) Announce(prompt, block, Tier::kDram);
  EXPECT_TRUE(source_.Take().empty());
  Announce(prompt, 2, Tier::kNvme);   // It goes on while it waits,
  Announce(prompt, 3, std::nullopt);  // or goes.
  EXPECT_TRUE(source_.Take().empty());
  Announce(prompt, 0, Tier::kDram);
  index_.Apply(source_.Take());
  EXPECT_EQ(index_.In(KvMedium::kCpu),
            (std::set{ShortHash(prompt.ids[0]), ShortHash(prompt.ids[1])}));
  EXPECT_EQ(index_.In(KvMedium::kDisk), (std::set{ShortHash(prompt.ids[2])}));
  Announce(prompt, 3, Tier::kNvme);
  index_.Apply(source_.Take());
  EXPECT_EQ(index_.prompts.at(ShortHash(prompt.ids[3])), prompt.tokens);
}

TEST_F(KvEventSourceTest, ABlockThatMovesWithoutItsParentIsTakenBack) {
  const PromptBlocks prompt = Prompt(1, 2);
  Serve(prompt);
  for (const size_t block : {0u, 1u}) Announce(prompt, block, Tier::kDram);
  EvictAll();
  index_.Apply(source_.Take());
  Announce(prompt, 0, std::nullopt);
  Announce(prompt, 1, Tier::kNvme);
  index_.Apply(source_.Take());
  EXPECT_TRUE(index_.places.empty());
  Serve(prompt);
  index_.Apply(source_.Take());
  EXPECT_EQ(index_.In(KvMedium::kGpu), Hashes(prompt));
  EXPECT_TRUE(index_.In(KvMedium::kDisk).empty());
}

// A snapshot of lower tiers is in no order.
TEST_F(KvEventSourceTest, ASnapshotHasParentsFirst) {
  std::vector<PromptBlocks> prompts;
  for (uint32_t seed = 1; seed <= 20; ++seed) {
    prompts.push_back(Prompt(seed, 10));
    Serve(prompts.back());
    for (size_t block = 0; block < 10; ++block) Announce(prompts.back(), block, Tier::kDram);
  }
  EvictAll();
  index_.Apply(source_.Take());  // Index fails where a parent is not known.
  EXPECT_EQ(index_.In(KvMedium::kCpu).size(), 200u);
  for (const PromptBlocks& prompt : prompts) {
    EXPECT_EQ(index_.prompts.at(ShortHash(prompt.ids.back())), prompt.tokens);
  }
}

// A disk that was filled by an earlier process.
TEST_F(KvEventSourceTest, BlocksWhoseTokensNobodyKnowsAreNamedByHashAlone) {
  const PromptBlocks prompt = Prompt(1, 2);
  Announce(prompt, 0, Tier::kNvme);
  Announce(prompt, 1, Tier::kNvme);
  index_.Apply(source_.Take());
  EXPECT_EQ(index_.In(KvMedium::kDisk), Hashes(prompt));
  EXPECT_TRUE(index_.prompts.empty());
  Serve(prompt);  // They are restored for a request that has the tokens.
  index_.Apply(source_.Take());
  EXPECT_EQ(index_.In(KvMedium::kGpu), Hashes(prompt));
  EXPECT_TRUE(index_.In(KvMedium::kDisk).empty());
  EXPECT_EQ(index_.prompts.at(ShortHash(prompt.ids[1])), prompt.tokens);
}

TEST_F(KvEventSourceTest, ASourceThatLostChangesStartsAgain) {
  Serve(Prompt(1, 3));
  index_.Apply(source_.Take());
  EvictAll();
  Serve(Prompt(2, 2));
  const std::vector<BlockId> too_many(BlockSubscriber::kPendingMax + 1);
  subscriber_->Add(RemovedEvent(too_many));
  ASSERT_TRUE(subscriber_->lost());
  index_.Apply(source_.Take());
  EXPECT_EQ(index_.clears, 2);
  EXPECT_EQ(index_.In(KvMedium::kGpu), Hashes(Prompt(2, 2)));
}

TEST_F(KvEventSourceTest, LongRunsAreDivided) {
  std::vector<BlockId> many(KvEventSource::kBlocksMax + 1);
  for (size_t i = 0; i < many.size(); ++i) {
    many[i].bytes[15] = static_cast<uint8_t>(i);
    many[i].bytes[14] = static_cast<uint8_t>(i >> 8);
  }
  source_.Take();
  subscriber_->Add(StoredEvent({}, many, v1::NVME));
  subscriber_->Add(RemovedEvent(many));
  EXPECT_EQ(source_.Take().size(), 4u);
}

TEST_F(KvEventSourceTest, AnIndexKnowsWhatTheCacheHasWhateverHappens) {
  std::mt19937 random(7);
  for (int i = 0; i < 800; ++i) {
    const PromptBlocks prompt = Prompt(1 + random() % 7, 1 + static_cast<int>(random() % 8));
    switch (random() % 4) {
      case 0:
        Announce(prompt, random() % prompt.ids.size(),
                 random() % 2 == 0 ? Tier::kDram : Tier::kNvme);
        break;
      case 1:
        Announce(prompt, random() % prompt.ids.size(), std::nullopt);
        break;
      default:
        Serve(prompt);
    }
    if (random() % 3 == 0) index_.Apply(source_.Take());
  }
  index_.Apply(source_.Take());
  EXPECT_EQ(index_.clears, 1);
  EXPECT_EQ(index_.In(KvMedium::kGpu).size(), static_cast<size_t>(pool_->blocks_cached()));
  for (uint32_t seed = 1; seed <= 7; ++seed) {
    const PromptBlocks prompt = Prompt(seed, 8);
    const auto leading = static_cast<size_t>(cache_->CountLeading(prompt));
    const std::set<uint64_t> on_device = index_.In(KvMedium::kGpu);
    for (size_t i = 0; i < leading; ++i) {
      EXPECT_TRUE(on_device.contains(ShortHash(prompt.ids[i])));
      EXPECT_TRUE(Begins(prompt.tokens, index_.prompts.at(ShortHash(prompt.ids[i]))));
    }
    if (leading == 8) continue;
    EXPECT_FALSE(on_device.contains(ShortHash(prompt.ids[leading])));
  }
  for (const auto& [hash, media] : index_.places) EXPECT_EQ(media.size(), 1u);
}

}  // namespace
}  // namespace penstock
