// Random operations on the cache beside a plain map from block to page, for every policy. Ten
// million of them with PENSTOCK_CACHE_OPERATIONS=10000000.

#include <gtest/gtest.h>

#include <cstdlib>
#include <map>
#include <optional>
#include <random>
#include <set>

#include "kvstore/cache/prefix_cache.h"

namespace penstock {
namespace {

constexpr KvLayout kLayout{.layers = 1, .kv_heads = 1, .head_dim = 8, .block_tokens = 16};
constexpr int64_t kPool = 96;
constexpr size_t kPromptMax = 24;

BlockId Named(uint64_t name) {
  BlockId id;
  for (size_t i = 0; i < 8; ++i) id.bytes[i] = static_cast<uint8_t>(name >> (8 * i));
  return id;
}

int Operations() {
  const char* asked = std::getenv("PENSTOCK_CACHE_OPERATIONS");
  return asked == nullptr ? 60000 : std::atoi(asked);
}

// The expected content of the cache: the page and the parent of each block.
class Model final : public PrefixCacheObserver {
 public:
  struct Block {
    BlockId parent;
    std::optional<uint32_t> page;  // known once the inserter has said it
    int children = 0;
  };

  void OnStored(const BlockId& parent, std::span<const BlockId> ids) override {
    const BlockId* above = &parent;
    for (const BlockId& id : ids) {
      EXPECT_TRUE(roots.contains(*above) || blocks.contains(*above)) << "an orphan is stored";
      EXPECT_TRUE(blocks.emplace(id, Block{.parent = *above, .page = {}}).second);
      if (blocks.contains(*above)) ++blocks[*above].children;
      above = &id;
    }
  }

  void OnEvicted(const BlockId& parent, std::span<const BlockId> ids,
                 std::span<const BlockRef> pages, uint32_t uses) override {
    EXPECT_GE(uses, 1u);
    EXPECT_EQ(blocks.at(ids.front()).parent, parent);
    for (size_t i = ids.size(); i-- > 0;) {  // Leaves first, and nothing that is held.
      const auto block = blocks.find(ids[i]);
      ASSERT_NE(block, blocks.end());
      EXPECT_EQ(block->second.children, 0);
      EXPECT_EQ(block->second.page, pages[i].id());
      EXPECT_FALSE(held.contains(pages[i].id())) << "a block in use is evicted";
      if (blocks.contains(block->second.parent)) --blocks[block->second.parent].children;
      blocks.erase(block);
    }
  }

  std::set<BlockId> roots;
  std::map<BlockId, Block> blocks;
  std::multiset<uint32_t> held;  // pages that sequences refer to
};

class ModelTest : public ::testing::TestWithParam<std::string> {
 protected:
  // A prompt that runs: what it has of its blocks so far.
  struct Sequence {
    BlockId root;
    std::vector<BlockId> ids;
    CacheAccess access;
    std::vector<BlockRef> blocks;
  };

  ModelTest()
      : pool_(*BlockPool::Create(kLayout, kPool)),
        cache_(*pool_, *MakeCachePolicy(GetParam(), kPool),
               {.pinned_max = 40, .pinned_max_of_tenant = 25}, &model_) {
    for (uint64_t tenant = 0; tenant < 3; ++tenant) {
      roots_.push_back(Named(tenant << 60 | uint64_t{1} << 59));
      model_.roots.insert(roots_.back());
    }
  }

  ~ModelTest() override {
    model_.held.clear();
    sequences_.clear();
  }

  uint64_t Below(uint64_t limit) { return random_() % limit; }
  TimePoint Now() const { return TimePoint(std::chrono::milliseconds(now_ms_)); }

  // Prompts fork anywhere from earlier ones: block i's name says which branch it hangs from.
  std::pair<BlockId, std::vector<BlockId>> Prompt() {
    const uint64_t tenant = Below(3);
    const size_t length = 1 + Below(kPromptMax);
    uint64_t branch = 0, path = tenant;
    std::vector<BlockId> ids;
    for (size_t i = 0; i < length; ++i) {
      if (Below(6) == 0) branch = (branch * 5 + 1 + Below(3)) % 4001;
      path = (path ^ (branch << 8 | i)) * 0x9e3779b97f4a7c15u;  // Names the whole path.
      path ^= path >> 29;
      ids.push_back(Named(path));
      ids.back().bytes[15] = static_cast<uint8_t>(tenant + 1);
    }
    return {roots_[tenant], ids};
  }

  size_t ModelLeading(const std::vector<BlockId>& ids) const {
    size_t leading = 0;
    while (leading < ids.size() && model_.blocks.contains(ids[leading])) ++leading;
    return leading;
  }

  void Begin() {
    auto [root, ids] = Prompt();
    const size_t expected = ModelLeading(ids);
    ASSERT_EQ(cache_.CountLeading(root, ids), static_cast<int64_t>(expected));
    auto found = cache_.Lookup(root, ids, Now());
    ASSERT_EQ(found.blocks.size(), expected);
    for (size_t i = 0; i < expected; ++i) {
      ASSERT_EQ(model_.blocks.at(ids[i]).page, found.blocks[i].id());
      model_.held.insert(found.blocks[i].id());
    }
    sequences_.push_back({root, std::move(ids), found.access, std::move(found.blocks)});
    Compute(sequences_.back());
  }

  // Takes some more pages and announces them.
  void Compute(Sequence& sequence) {
    const size_t missing = sequence.ids.size() - sequence.blocks.size();
    if (missing == 0) return;
    const auto more = static_cast<int64_t>(1 + Below(missing));
    const int64_t evictable = pool_->blocks_cached();
    const int64_t free = pool_->blocks_free();
    const bool room = cache_.MakeRoom(more, 0, Now());
    // Sequences hold the parents of what they hold, so all that is idle can be had.
    ASSERT_EQ(room, more <= free + evictable);
    if (!room) return;
    auto credit = pool_->Reserve(more);
    ASSERT_TRUE(credit.ok());
    for (BlockRef& block : credit->Take(more)) {
      model_.held.insert(block.id());
      sequence.blocks.push_back(std::move(block));
    }
    const auto ids = std::span(sequence.ids).first(sequence.blocks.size());
    for (const BlockRef& block : sequence.blocks) model_.held.erase(model_.held.find(block.id()));
    const size_t known = ModelLeading({ids.begin(), ids.end()});
    std::vector<uint32_t> own;
    for (const BlockRef& block : sequence.blocks) own.push_back(block.id());
    cache_.Insert(sequence.access, sequence.root, ids, sequence.blocks);
    for (size_t i = 0; i < sequence.blocks.size(); ++i) {
      Model::Block& block = model_.blocks.at(ids[i]);
      if (i >= known) block.page = own[i];
      ASSERT_EQ(block.page, sequence.blocks[i].id());  // Adopted, or its own.
      model_.held.insert(sequence.blocks[i].id());
    }
  }

  void End() {
    const size_t chosen = Below(sequences_.size());
    for (const BlockRef& block : sequences_[chosen].blocks) {
      model_.held.erase(model_.held.find(block.id()));
    }
    sequences_.erase(sequences_.begin() + static_cast<std::ptrdiff_t>(chosen));
  }

  void Pin() {
    const auto [root, ids] = Prompt();
    const int64_t pinned = cache_.Pin(
        root, ids, {.tenant = "t", .until = Now() + std::chrono::milliseconds(Below(400))}, Now());
    ASSERT_LE(pinned, static_cast<int64_t>(ModelLeading(ids)));
    ASSERT_LE(cache_.blocks_pinned(), 40);
  }

  void Check() {
    ASSERT_EQ(cache_.blocks(), static_cast<int64_t>(model_.blocks.size()));
    const std::set<uint32_t> used(model_.held.begin(), model_.held.end());
    ASSERT_EQ(pool_->blocks_used(), static_cast<int64_t>(used.size()));
    std::set<BlockId> seen;
    cache_.ForEachRun([&](const BlockId& parent, std::span<const BlockId> ids) {
      const BlockId* above = &parent;
      for (const BlockId& id : ids) {
        EXPECT_EQ(model_.blocks.at(id).parent, *above);
        EXPECT_TRUE(seen.insert(id).second);
        above = &id;
      }
    });
    ASSERT_EQ(seen.size(), model_.blocks.size());
  }

  std::mt19937_64 random_{7};
  int64_t now_ms_ = 1000;
  Model model_;
  std::vector<BlockId> roots_;
  std::unique_ptr<BlockPool> pool_;
  PrefixCache cache_;
  std::vector<Sequence> sequences_;
};

TEST_P(ModelTest, IsAsAPlainMap) {
  const int operations = Operations();
  for (int i = 0; i < operations && !HasFatalFailure(); ++i) {
    now_ms_ += static_cast<int64_t>(Below(50));
    const uint64_t kind = Below(100);
    if (sequences_.empty() || (kind < 40 && sequences_.size() < 6)) {
      Begin();
    } else if (kind < 60) {
      Compute(sequences_[Below(sequences_.size())]);
    } else if (kind < 92) {
      End();
    } else if (kind < 95) {
      Pin();
    } else if (kind < 98) {
      cache_.Evict(static_cast<int64_t>(Below(20)), Now());
    } else if (kind == 99 && Below(50) == 0) {
      cache_.Clear(Now());
    }
    if (i % 97 == 0) Check();
  }
  Check();
  EXPECT_GT(cache_.counts().hit, 0u);
  EXPECT_GT(cache_.counts().evicted, 0u);
}

INSTANTIATE_TEST_SUITE_P(Policies, ModelTest,
                         ::testing::Values("cost", "lru", "lfu", "fifo", "s3-fifo"),
                         [](const auto& param) {
                           return param.param == "s3-fifo" ? "s3fifo" : param.param;
                         });

}  // namespace
}  // namespace penstock
