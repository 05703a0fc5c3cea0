#include "kvstore/cache/evicted_blocks.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <random>
#include <vector>

#include "kvstore/cache/cache_policy.h"

namespace penstock {
namespace {

std::vector<BlockId> SomeIds(uint32_t first, int count) {
  std::vector<uint32_t> tokens(count);
  for (int i = 0; i < count; ++i) tokens[i] = first + i;
  return HashBlocks(BlockId{}, tokens, 1);
}

TEST(EvictedBlocksTest, RemembersTheLastOnes) {
  EvictedBlocks<int> evicted(3);
  const std::vector<BlockId> ids = SomeIds(0, 5);
  for (int i = 0; i < 5; ++i) evicted.Put(ids[i], i);
  EXPECT_EQ(evicted.size(), 3u);
  EXPECT_EQ(evicted.Take(ids[1]), std::nullopt);
  EXPECT_EQ(evicted.Take(ids[2]), 2);
  EXPECT_EQ(evicted.Take(ids[2]), std::nullopt);  // it was taken
  EXPECT_EQ(evicted.Take(ids[4]), 4);
  EXPECT_EQ(evicted.size(), 1u);
}

TEST(EvictedBlocksTest, ABlockThatIsEvictedAgainIsRememberedAnew) {
  EvictedBlocks<int> evicted(3);
  const std::vector<BlockId> ids = SomeIds(0, 4);
  evicted.Put(ids[0], 0);
  evicted.Put(ids[1], 1);
  evicted.Put(ids[0], 10);
  evicted.Put(ids[2], 2);  // in the place of the first
  EXPECT_EQ(evicted.size(), 3u);
  evicted.Put(ids[3], 3);
  EXPECT_EQ(evicted.Take(ids[1]), std::nullopt);
  EXPECT_EQ(evicted.Take(ids[0]), 10);
}

// Against a plain list.
TEST(EvictedBlocksTest, IsAsAListOfThePuts) {
  constexpr size_t kLimit = 50;
  struct Evicted {
    BlockId id;
    int value;
    bool live;
  };
  const std::vector<BlockId> ids = SomeIds(0, 120);
  EvictedBlocks<int> evicted(kLimit);
  std::deque<Evicted> model;
  std::mt19937 random(1);
  for (int step = 0; step < 20'000; ++step) {
    const BlockId& id = ids[random() % ids.size()];
    const auto found = std::find_if(model.begin(), model.end(),
                                    [&](const Evicted& e) { return e.live && e.id == id; });
    if (random() % 3 == 0) {
      const auto expected = found == model.end() ? std::nullopt : std::optional(found->value);
      ASSERT_EQ(evicted.Take(id), expected);
      if (found != model.end()) found->live = false;
    } else {
      if (found != model.end()) found->live = false;
      evicted.Put(id, step);
      model.push_back({id, step, true});
      if (model.size() > kLimit) model.pop_front();
    }
    ASSERT_EQ(evicted.size(),
              static_cast<size_t>(std::count_if(model.begin(), model.end(),
                                                [](const Evicted& e) { return e.live; })));
  }
}

// Number of uses with which the policy takes back a block that was evicted after one use, and
// before `later` other blocks.
uint32_t UsesAfter(int64_t capacity, int later) {
  const auto policy = *MakeCachePolicy("cost", capacity);
  const CacheRun run{.stats = {.uses = 1}};
  const std::vector<BlockId> ids = SomeIds(1, 1 + later);
  for (const BlockId& id : ids) policy->OnEvicted(run, {&id, 1});
  return policy->Admit(ids[0], {.number = 1}).uses;
}

TEST(EvictedBlocksTest, TheMemoryOfASmallCacheIsSmall) {
  EXPECT_EQ(UsesAfter(100, 6'399), 2u);
  EXPECT_EQ(UsesAfter(100, 6'400), 1u);
  EXPECT_EQ(UsesAfter(100'000, 300'000), 2u);
}

}  // namespace
}  // namespace penstock
