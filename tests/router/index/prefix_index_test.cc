#include "router/index/prefix_index.h"

#include <gtest/gtest.h>

#include <map>
#include <random>
#include <set>

#include "tests/router/index/block_tree.h"

namespace penstock {
namespace {

using Chain = std::vector<BlockId>;

// A simple model of the index, for comparison.
class PlainIndex {
 public:
  void Store(uint32_t worker, BlockTier tier, std::span<const BlockId> ids) {
    for (const BlockId& id : ids) held_[worker][id] = tier;
  }
  void Expect(uint32_t worker, std::span<const BlockId> ids) {
    for (const BlockId& id : ids) held_[worker].try_emplace(id, BlockTier::kExpected);
  }
  void Move(uint32_t worker, BlockTier tier, std::span<const BlockId> ids) {
    for (const BlockId& id : ids) {
      if (held_[worker].contains(id)) held_[worker][id] = tier;
    }
  }
  void Remove(uint32_t worker, std::span<const BlockId> ids) {
    for (const BlockId& id : ids) held_[worker].erase(id);
  }
  void Unexpect(uint32_t worker, std::span<const BlockId> ids) {
    for (const BlockId& id : ids) {
      const auto found = held_[worker].find(id);
      if (found != held_[worker].end() && found->second == BlockTier::kExpected) {
        held_[worker].erase(found);
      }
    }
  }
  void Clear(uint32_t worker) { held_[worker].clear(); }

  PrefixMatches::Hit Find(uint32_t worker, const Chain& prompt) const {
    PrefixMatches::Hit hit;
    const auto held = held_.find(worker);
    if (held == held_.end()) return hit;
    for (const BlockId& id : prompt) {
      const auto found = held->second.find(id);
      if (found == held->second.end()) break;
      ++hit.blocks;
      ++hit.in_tier[static_cast<size_t>(found->second)];
    }
    return hit;
  }
  uint64_t BlocksOf(uint32_t worker) const {
    const auto held = held_.find(worker);
    return held == held_.end() ? 0 : held->second.size();
  }
  // The blocks that some worker has: the index must store exactly these.
  std::set<BlockId> Blocks() const {
    std::set<BlockId> all;
    for (const auto& [worker, blocks] : held_) {
      for (const auto& [id, tier] : blocks) all.insert(id);
    }
    return all;
  }

 private:
  std::map<uint32_t, std::map<BlockId, BlockTier>> held_;
};

constexpr uint32_t kWorkers = 5;

void ExpectSame(const PrefixIndex& index, const PlainIndex& plain, const Chain& prompt) {
  PrefixMatches matches;
  index.Find(prompt, matches);
  std::set<uint32_t> hits;
  for (uint32_t worker = 0; worker < kWorkers; ++worker) {
    const PrefixMatches::Hit expected = plain.Find(worker, prompt);
    ASSERT_EQ(matches.of(worker), expected) << "worker " << worker;
    if (expected.blocks > 0) hits.insert(worker);
  }
  ASSERT_EQ(std::set<uint32_t>(matches.workers().begin(), matches.workers().end()), hits);
}

// Random changes of random pieces of a growing tree, against the plain map.
void RunModelTest(uint64_t seed, int steps, uint32_t branches) {
  SCOPED_TRACE(testing::Message() << "seed " << seed);
  std::mt19937_64 random(seed);
  BlockTree tree(seed);
  PrefixIndex index;
  PlainIndex plain;
  const auto below = [&](uint64_t bound) { return random() % bound; };
  for (int step = 0; step < steps; ++step) {
    if (step < static_cast<int>(branches)) tree.Grow(1 + below(150));
    const Chain chain = tree.Path(below(tree.size()));
    const size_t from = below(chain.size());
    const size_t count = 1 + below(chain.size() - from);
    const std::span<const BlockId> piece(&chain[from], count);
    const auto worker = static_cast<uint32_t>(below(kWorkers));
    const auto tier = static_cast<BlockTier>(below(3));
    const BlockId* parent = from > 0 && below(4) > 0 ? &chain[from - 1] : nullptr;
    Chain shuffled(piece.begin(), piece.end());
    if (below(2) == 0) std::reverse(shuffled.begin(), shuffled.end());
    if (below(8) == 0) std::shuffle(shuffled.begin(), shuffled.end(), random);
    switch (below(8)) {
      case 0:
      case 1:
      case 2:
        index.Store(worker, tier, parent, piece);
        plain.Store(worker, tier, piece);
        break;
      case 3:
        index.Expect(worker, parent, piece);
        plain.Expect(worker, piece);
        break;
      case 4:
        index.Move(worker, tier, shuffled);
        plain.Move(worker, tier, shuffled);
        break;
      case 5:
      case 6:
        index.Remove(worker, shuffled);
        plain.Remove(worker, shuffled);
        break;
      default:
        index.Unexpect(worker, shuffled);
        plain.Unexpect(worker, shuffled);
        if (below(16) == 0) {
          index.Clear(worker);
          plain.Clear(worker);
        }
    }
    ASSERT_NO_FATAL_FAILURE(ExpectSame(index, plain, tree.Path(below(tree.size()))));
  }
  for (uint32_t worker = 0; worker < kWorkers; ++worker) {
    EXPECT_EQ(index.blocks_of(worker), plain.BlocksOf(worker));
  }
  for (uint32_t worker = 0; worker < kWorkers; ++worker) index.Clear(worker);
  EXPECT_EQ(index.blocks(), 0u) << "what nobody has must go";
}

TEST(PrefixIndexModel, AgreesWithAPlainMap) {
  for (uint64_t seed = 1; seed <= 20; ++seed) RunModelTest(seed, 600, 40);
}

TEST(PrefixIndexModel, AgreesOnFewLongPaths) {
  for (uint64_t seed = 100; seed < 110; ++seed) RunModelTest(seed, 600, 4);
}

TEST(PrefixIndex, FindsALeadingPartOnly) {
  BlockTree tree(1);
  const Chain chain = tree.Path(tree.Grow(100));
  PrefixIndex index;
  PrefixMatches matches;
  index.Store(3, BlockTier::kDevice, nullptr, chain);
  index.Remove(3, std::span(&chain[70], 1));
  index.Find(chain, matches);
  EXPECT_EQ(matches.of(3).blocks, 70u);
  index.Store(3, BlockTier::kDram, &chain[69], std::span(&chain[70], 1));
  index.Find(chain, matches);
  EXPECT_EQ(matches.of(3).blocks, 100u) << "the hole is filled";
  EXPECT_EQ(matches.of(3).in_tier, (std::array<uint32_t, kBlockTiers>{99, 1, 0, 0}));
  index.Remove(3, std::span(&chain[0], 1));
  index.Find(chain, matches);
  EXPECT_TRUE(matches.workers().empty());
}

TEST(PrefixIndex, ExpectationIsReplacedByTheEvent) {
  BlockTree tree(2);
  const Chain chain = tree.Path(tree.Grow(10));
  PrefixIndex index;
  PrefixMatches matches;
  EXPECT_EQ(index.Expect(1, nullptr, chain), 10u);
  index.Store(1, BlockTier::kDevice, nullptr, std::span(chain).first(4));
  EXPECT_EQ(index.Expect(1, nullptr, chain), 0u) << "all is known or expected";
  index.Find(chain, matches);
  EXPECT_EQ(matches.of(1).in_tier, (std::array<uint32_t, kBlockTiers>{4, 0, 0, 6}));
  index.Unexpect(1, chain);
  index.Find(chain, matches);
  EXPECT_EQ(matches.of(1).blocks, 4u);
  EXPECT_EQ(index.blocks_of(1), 4u);
}

TEST(PrefixIndex, StopsTakingBlocksAtItsBound) {
  BlockTree tree(3);
  const Chain chain = tree.Path(tree.Grow(50));
  PrefixIndex index(/*blocks_max=*/60);
  PrefixMatches matches;
  index.Store(1, BlockTier::kDevice, nullptr, chain);
  index.Store(2, BlockTier::kDevice, nullptr, chain);  // nothing new
  const Chain other = tree.Path(tree.Grow(20));
  index.Store(1, BlockTier::kDevice, nullptr, other);
  EXPECT_LE(index.blocks(), 60u);
  EXPECT_GT(index.dropped(), 0u);
  index.Find(chain, matches);
  EXPECT_EQ(matches.of(2).blocks, 50u);
}

}  // namespace
}  // namespace penstock
