#include "lab/replay/cache_replay.h"

#include <gtest/gtest.h>

#include <cstdio>
#include <list>
#include <map>

#include "lab/fake/temp_folder.h"
#include "lab/replay/demotion_replay.h"

namespace penstock {
namespace {

double HitRate(const CacheTrace& trace, const std::string& policy, int64_t capacity) {
  const auto rate = ReplayHitRate(trace, {.policy = policy, .capacity = capacity});
  EXPECT_TRUE(rate.ok()) << rate.status();
  return rate.value_or(-1);
}

// LRU over single blocks, the tail of a request first: the same as over the tree's leaves.
double PlainLru(const CacheTrace& trace, size_t capacity) {
  std::list<BlockId> order;  // the last used first
  std::map<BlockId, std::list<BlockId>::iterator> where;
  size_t hits = 0, asked = 0;
  for (const CacheRequest& request : trace.requests) {
    size_t leading = 0;
    while (leading < request.blocks.size() && where.contains(request.blocks[leading])) ++leading;
    hits += leading;
    asked += request.blocks.size();
    for (size_t i = request.blocks.size(); i-- > 0;) {
      const auto known = where.find(request.blocks[i]);
      if (known != where.end()) order.erase(known->second);
      order.push_front(request.blocks[i]);
      where[request.blocks[i]] = order.begin();
    }
    while (where.size() > capacity) {
      where.erase(order.back());
      order.pop_back();
    }
  }
  return static_cast<double>(hits) / static_cast<double>(asked);
}

TEST(CacheReplayTest, LruIsPlainBlockLru) {
  const CacheTrace trace = MakeCacheTrace(2000);
  for (const int64_t capacity : {200, 1000, 4000}) {
    EXPECT_DOUBLE_EQ(HitRate(trace, "lru", capacity),
                     PlainLru(trace, static_cast<size_t>(capacity)));
  }
}

TEST(CacheReplayTest, WithRoomForAllEveryPolicyIsIdeal) {
  const CacheTrace trace = MakeCacheTrace(1000);
  for (const char* policy : {"cost", "lru", "lfu", "fifo", "s3-fifo"}) {
    EXPECT_DOUBLE_EQ(HitRate(trace, policy, 1000000), IdealHitRate(trace)) << policy;
  }
}

TEST(CacheReplayTest, TheDefaultIsNotWorseThanLru) {
  const CacheTrace trace = MakeCacheTrace(4000);
  for (const int64_t capacity : {500, 2000, 6000}) {
    EXPECT_GE(HitRate(trace, "cost", capacity), HitRate(trace, "lru", capacity) - 0.002)
        << capacity;
  }
}

CacheTrace SingleBlocks(std::initializer_list<uint8_t> names) {
  CacheTrace trace;
  for (const uint8_t name : names) {
    BlockId id{};
    id.bytes[0] = name;
    trace.requests.push_back({.blocks = {id}});
  }
  return trace;
}

TEST(DemotionReplayTest, WritesWhatTheRuleAsksFor) {
  // Memory holds two blocks: 1 and 2 go when 3 and 4 come, 1 comes back, and goes again.
  const CacheTrace trace = SingleBlocks({1, 2, 3, 4, 1, 5, 6});
  const auto plain = ReplayDemotion(trace, 2, 8, kPlainDemotion);
  ASSERT_TRUE(plain.ok()) << plain.status();
  EXPECT_EQ(plain->writes, 5);  // 1 2 3 4 1
  EXPECT_EQ(plain->hits, 1);
  const auto kept = ReplayDemotion(trace, 2, 8, {.uses_min = 1});
  ASSERT_TRUE(kept.ok()) << kept.status();
  EXPECT_EQ(kept->writes, 4);
  EXPECT_EQ(kept->hits, 1);
  const auto second = ReplayDemotion(trace, 2, 8, {.uses_min = 2});
  ASSERT_TRUE(second.ok()) << second.status();
  EXPECT_EQ(second->writes, 0);
  EXPECT_EQ(second->hits, 0);
}

// Some traces have no id for the tokens behind the last full block.
TEST(CacheReplayTest, APromptShorterThanABlockNeedsNoId) {
  const TempFolder folder;
  const std::string path =
      folder.Write("trace.jsonl", R"({"timestamp": 0, "input_length": 100, "hash_ids": []}
{"timestamp": 5, "input_length": 1030, "hash_ids": [1]}
{"timestamp": 6, "input_length": 1030, "hash_ids": [1, 2]}
{"timestamp": 7, "input_length": 1024, "hash_ids": [1]}
)");
  const auto trace = LoadCacheTrace(path, 1024);
  ASSERT_TRUE(trace.ok()) << trace.status();
  std::vector<bool> partial;
  for (const CacheRequest& request : trace->requests) partial.push_back(request.partial_tail);
  EXPECT_EQ(partial, (std::vector<bool>{false, false, true, false}));
  const auto counts = ReplayDemotion(*trace, 2, 8, {.uses_min = 1});
  ASSERT_TRUE(counts.ok()) << counts.status();
  EXPECT_DOUBLE_EQ(HitRate(*trace, "lru", 10), 2.0 / 4);
  // A caller's own request may say so of no block at all.
  EXPECT_TRUE(BlocksToKeep({.partial_tail = true, .blocks = {}}, false).empty());
}

TEST(CacheReplayTest, ATraceOfOtherBlocksIsRefused) {
  const TempFolder folder;
  const std::string path =
      folder.Write("trace.jsonl", R"({"timestamp": 0, "input_length": 2600, "hash_ids": [1, 2, 3]}
)");
  EXPECT_TRUE(LoadCacheTrace(path, 1024).ok());
  for (const int64_t block_tokens : {256, 512, 2048}) {
    const auto trace = LoadCacheTrace(path, block_tokens);
    ASSERT_TRUE(absl::IsInvalidArgument(trace.status())) << block_tokens;
    EXPECT_NE(Message(trace.status()).find("--block-tokens"), std::string::npos);
  }
}

TEST(CacheReplayTest, ATracesMistakeIsNamedByItsLine) {
  const TempFolder folder;
  const std::string path =
      folder.Write("trace.jsonl", R"({"timestamp": 0, "input_length": 600, "hash_ids": [1, 2]}
{"timestamp": 5, "input_length": 600, "hash_ids": ["x"]}
)");
  const auto trace = LoadCacheTrace(path, 512);
  ASSERT_FALSE(trace.ok());
  EXPECT_NE(Message(trace.status()).find("line 2"), std::string::npos) << trace.status();
}

}  // namespace
}  // namespace penstock
