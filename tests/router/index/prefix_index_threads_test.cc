// Look-ups beside changes, for ThreadSanitizer and for what a look-up may see.

#include <gtest/gtest.h>

#include <atomic>
#include <thread>

#include "router/index/prefix_index.h"
#include "tests/router/index/block_tree.h"

namespace penstock {
namespace {

constexpr uint32_t kSteady = 0;  // a worker whose blocks never change
constexpr int kPaths = 60;

std::vector<std::vector<BlockId>> MakePaths() {
  BlockTree tree(7);
  std::vector<std::vector<BlockId>> paths;
  for (int i = 0; i < kPaths; ++i) paths.push_back(tree.Path(tree.Grow(1 + i % 90)));
  return paths;
}

// One worker's events: a pure function of its seed.
void Churn(PrefixIndex& index, uint32_t worker, const std::vector<std::vector<BlockId>>& paths,
           int steps) {
  std::mt19937_64 random(worker);
  for (int step = 0; step < steps; ++step) {
    const std::vector<BlockId>& path = paths[random() % paths.size()];
    const size_t from = random() % path.size();
    const std::span<const BlockId> piece = std::span(path).subspan(from);
    const BlockId* parent = from > 0 ? &path[from - 1] : nullptr;
    switch (random() % 5) {
      case 0:
      case 1:
        index.Store(worker, BlockTier::kDevice, parent, piece);
        break;
      case 2:
        index.Expect(worker, parent, piece);
        break;
      case 3:
        index.Move(worker, BlockTier::kDram, piece);
        break;
      default:
        index.Remove(worker, piece);
    }
  }
}

TEST(PrefixIndexThreads, AChangeIsSeenBeforeOrAfterAndNeverHalf) {
  const std::vector<std::vector<BlockId>> paths = MakePaths();
  PrefixIndex index;
  for (int i = 0; i < kPaths; i += 2) {
    index.Store(kSteady, BlockTier::kNvme, nullptr, paths[i]);
  }
  std::atomic<bool> stop{false};
  std::atomic<uint64_t> lookups{0};
  const auto read = [&](uint64_t seed) {
    std::mt19937_64 random(seed);
    PrefixMatches matches;
    while (!stop) {
      const size_t number = random() % kPaths;
      index.Find(paths[number], matches);
      ++lookups;
      for (const uint16_t worker : matches.workers()) {
        const PrefixMatches::Hit& hit = matches.of(worker);
        ASSERT_LE(hit.blocks, paths[number].size());
        ASSERT_EQ(hit.in_tier[0] + hit.in_tier[1] + hit.in_tier[2] + hit.in_tier[3], hit.blocks);
      }
      // Others come and go in the same runs; what stays is never missed.
      if (number % 2 != 0) continue;
      ASSERT_EQ(matches.of(kSteady).blocks, paths[number].size());
    }
  };
  std::vector<std::thread> readers;
  for (uint64_t i = 0; i < 2; ++i) readers.emplace_back(read, i);
  while (lookups == 0) std::this_thread::yield();  // or all may have changed before they begin
  std::vector<std::thread> writers;
  for (uint32_t worker = 1; worker <= 3; ++worker) {
    writers.emplace_back([&, worker] { Churn(index, worker, paths, 1500); });
  }
  for (std::thread& writer : writers) writer.join();
  stop = true;
  for (std::thread& reader : readers) reader.join();
  EXPECT_GT(lookups, 0u);

  // Whatever the interleaving, each worker has what its own events left.
  for (uint32_t worker = 1; worker <= 3; ++worker) {
    PrefixIndex alone;
    Churn(alone, worker, paths, 1500);
    PrefixMatches expected;
    PrefixMatches actual;
    for (const std::vector<BlockId>& path : paths) {
      alone.Find(path, expected);
      index.Find(path, actual);
      ASSERT_EQ(actual.of(worker), expected.of(worker));
    }
    EXPECT_EQ(index.blocks_of(worker), alone.blocks_of(worker));
  }
  for (uint32_t worker = 0; worker <= 3; ++worker) index.Clear(worker);
  EXPECT_EQ(index.blocks(), 0u);
}

}  // namespace
}  // namespace penstock
