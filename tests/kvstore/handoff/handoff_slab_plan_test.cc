#include "kvstore/handoff/handoff_slab_plan.h"

#include <gtest/gtest.h>

#include <cstring>
#include <random>

#include "kvstore/cache/block_pool.h"
#include "kvstore/handoff/handoff_slabs.h"
#include "kvstore/handoff/handoff_staging.h"
#include "tests/kvstore/tiers/far_pages.h"

namespace penstock {
namespace {

constexpr size_t kCell = 100;

HandoffSlabPlan NewPlan(size_t min, size_t max) {
  return HandoffSlabPlan({.min = min * kCell, .max = max * kCell}, kCell);
}

TEST(HandoffCoverageTest, KnowsWhatIsThere) {
  HandoffCoverage coverage(3, 4);
  EXPECT_TRUE(coverage.Contains({0, 3, 0, 4}));
  EXPECT_FALSE(coverage.Contains({0, 4, 0, 4}));
  EXPECT_FALSE(coverage.Contains({0, 3, 0, 5}));
  EXPECT_FALSE(coverage.Contains({1, 1, 0, 4}));
  EXPECT_FALSE(coverage.Contains({2, 1, 0, 4}));
  EXPECT_FALSE(coverage.Contains({0, 3, 0xfffffff0u, 4}));
  coverage.Add({0, 2, 0, 2});
  EXPECT_TRUE(coverage.Overlaps({1, 3, 1, 3}));
  EXPECT_FALSE(coverage.Overlaps({2, 3, 0, 4}));
  EXPECT_FALSE(coverage.Overlaps({0, 2, 2, 4}));
  EXPECT_EQ(coverage.complete_layers(), 0u);
  coverage.Add({0, 2, 2, 4});
  EXPECT_EQ(coverage.complete_layers(), 2u);
  EXPECT_FALSE(coverage.complete());
  coverage.Add({2, 3, 0, 4});
  EXPECT_TRUE(coverage.complete());
}

TEST(HandoffSlabPlanTest, NeighboursGrowTogetherWhileTheyWait) {
  auto plan = NewPlan(4, 1000);
  plan.Add({0, 2, 0, 8});
  plan.Add({2, 4, 0, 8});  // The step's other layers.
  plan.Add({0, 2, 8, 16});
  plan.Add({2, 4, 8, 16});  // The next step.
  EXPECT_EQ(plan.Next(false), (KvRange{0, 4, 0, 16}));
  EXPECT_TRUE(plan.empty());
}

TEST(HandoffSlabPlanTest, SmallRangesWaitOnlyWhileTheWireIsBusyAndTheyCanGrow) {
  auto plan = NewPlan(10, 1000);
  plan.Add({0, 1, 0, 4});
  EXPECT_EQ(plan.Next(true), std::nullopt);
  plan.Add({1, 2, 0, 4});
  EXPECT_EQ(plan.Next(true), std::nullopt);
  plan.Add({2, 3, 0, 4});
  EXPECT_EQ(plan.Next(true), (KvRange{0, 3, 0, 4}));
  plan.Add({3, 4, 0, 4});
  EXPECT_EQ(plan.Next(false), (KvRange{3, 4, 0, 4}));
  plan.Add({0, 1, 4, 6});
  plan.Add({2, 3, 6, 8});  // No neighbour: the first cannot grow any more.
  EXPECT_EQ(plan.Next(true), (KvRange{0, 1, 4, 6}));
  EXPECT_EQ(plan.Next(true), std::nullopt);
}

TEST(HandoffSlabPlanTest, CutsWholeLayersFirstAndBlocksOfOneLayerWhenItMust) {
  auto plan = NewPlan(1, 8);
  plan.Add({0, 5, 0, 4});
  EXPECT_EQ(plan.Next(true), (KvRange{0, 2, 0, 4}));
  EXPECT_EQ(plan.Next(true), (KvRange{2, 4, 0, 4}));
  EXPECT_EQ(plan.Next(true), (KvRange{4, 5, 0, 4}));
  plan.Add({0, 2, 0, 10});
  EXPECT_EQ(plan.Next(true), (KvRange{0, 1, 0, 8}));
  EXPECT_EQ(plan.Next(true), (KvRange{0, 1, 8, 10}));
  EXPECT_EQ(plan.Next(true), (KvRange{1, 2, 0, 8}));
}

TEST(HandoffSlabPlanTest, WhateverIsAddedComesOutOnceAndWithinTheBounds) {
  std::mt19937 random(1);
  for (int round = 0; round < 300; ++round) {
    const uint32_t layers = 1 + random() % 7;
    const uint32_t blocks = 1 + random() % 30;
    const size_t max = 1 + random() % 20;
    auto plan = NewPlan(random() % 6, max);
    HandoffCoverage seen(layers, blocks);
    const auto take = [&](bool may_wait) {
      const auto range = plan.Next(may_wait);
      if (!range) return false;
      EXPECT_TRUE(seen.Contains(*range));
      EXPECT_LE(range->cells(), max);
      seen.Add(*range);  // CHECKs that nothing comes twice.
      return true;
    };
    for (uint32_t block = 0; block < blocks;) {
      const uint32_t last_block = std::min<uint32_t>(blocks, block + 1 + random() % 8);
      for (uint32_t layer = 0; layer < layers;) {
        const uint32_t last_layer = std::min<uint32_t>(layers, layer + 1 + random() % 3);
        plan.Add({layer, last_layer, block, last_block});
        layer = last_layer;
        if (random() % 2 == 0) take(true);
      }
      block = last_block;
    }
    while (take(false)) {
    }
    EXPECT_TRUE(seen.complete());
  }
}

TEST(HandoffSlabsTest, ScatterUndoesGatherAndTouchesNothingElse) {
  constexpr KvLayout kLayout{.layers = 5, .kv_heads = 2, .head_dim = 8, .block_tokens = 16};
  const auto source = *BlockPool::Create(kLayout, 6);
  const auto target = *BlockPool::Create(kLayout, 6);
  std::mt19937 random(2);
  for (size_t i = 0; i < 6 * kLayout.BlockStride(); ++i) {
    source->view().arena[i] = static_cast<std::byte>(random());
  }
  const SlabHeader header{.first_layer = 1, .layers = 3, .first_block = 7, .blocks = 2};
  std::vector<std::byte> payload(2 * 3 * kLayout.LayerBytes());
  const uint32_t from[] = {4, 0};
  const uint32_t to[] = {2, 5};
  GatherSlab(source->view(), header, from, payload);
  ScatterSlab(target->view(), header, to, payload);
  for (uint32_t block = 0; block < 6; ++block) {
    for (int32_t layer = 0; layer < 5; ++layer) {
      const std::byte* data = target->view().Layer(block, layer);
      const bool written = (block == 2 || block == 5) && layer >= 1 && layer < 4;
      if (written) {
        EXPECT_EQ(0, std::memcmp(data, source->view().Layer(block == 2 ? 4 : 0, layer),
                                 kLayout.LayerBytes()));
      } else {
        EXPECT_TRUE(std::all_of(data, data + kLayout.LayerBytes(),
                                [](std::byte b) { return b == std::byte{0}; }));
      }
    }
  }
}

TEST(HandoffSlabsTest, PagesNeedNotBeTheHosts) {
  constexpr KvLayout kLayout{.layers = 5, .kv_heads = 2, .head_dim = 8, .block_tokens = 16};
  FarPages far(kLayout, 4);
  const auto near = *BlockPool::Create(kLayout, 4);
  const SlabHeader header{.first_layer = 2, .layers = 2, .blocks = 2};
  std::vector<std::byte> payload(2 * 2 * kLayout.LayerBytes()), back(payload.size());
  std::mt19937 random(3);
  for (std::byte& byte : payload) byte = static_cast<std::byte>(random());
  const uint32_t pages[] = {3, 1}, others[] = {0, 2};
  ScatterSlab(far.view(), header, pages, payload);
  GatherSlab(far.view(), header, pages, back);
  EXPECT_EQ(back, payload);
  ScatterSlab(near->view(), header, others, back);
  std::vector<std::byte> piece(2 * kLayout.LayerBytes());
  far.Read({pages, 1}, 2 * kLayout.LayerBytes(), piece.size(), piece.data());
  EXPECT_EQ(0, std::memcmp(piece.data(), near->view().Layer(0, 2), piece.size()));
}

TEST(HandoffStagingTest, KeepsToItsBudgetAndReusesBuffers) {
  HandoffStaging staging(64 << 10);
  StagingBuffer a = staging.Acquire(20'000);  // 32 KiB
  StagingBuffer b = staging.Acquire(32'768);
  ASSERT_TRUE(a && b);
  EXPECT_EQ(reinterpret_cast<uintptr_t>(a.data()) % 4096, 0u);
  EXPECT_EQ(staging.used(), size_t{64} << 10);
  EXPECT_FALSE(staging.Acquire(1));
  const std::byte* first = a.data();
  a = StagingBuffer();
  StagingBuffer c = staging.Acquire(30'000);
  EXPECT_EQ(c.data(), first);
  b = StagingBuffer();
  // Another size: the idle buffer makes room.
  StagingBuffer d = staging.Acquire(4096);
  EXPECT_TRUE(d);
  EXPECT_EQ(staging.used(), size_t{36} << 10);
}

TEST(HandoffStagingTest, FreesWhatABurstTookOnceItIsOver) {
  HandoffStaging staging(64 << 20);
  {
    std::vector<StagingBuffer> burst;
    for (int i = 0; i < 8; ++i) burst.push_back(staging.Acquire(3 << 20));
  }
  EXPECT_EQ(staging.idle(), size_t{32} << 20);
  for (int i = 0; i < 300; ++i) {
    StagingBuffer first = staging.Acquire(4096), second = staging.Acquire(4 << 20);
    ASSERT_EQ(reinterpret_cast<uintptr_t>(second.data()) % (2 << 20), 0u);
    second.data()[(4 << 20) - 1] = std::byte{1};
  }
  EXPECT_EQ(staging.idle(), (size_t{4} << 20) + 4096);  // as much as is used at once
}

TEST(ArenaStagingTest, GivesWhatIsFreeAndJoinsWhatComesBack) {
  alignas(4096) static std::byte arena[10 * 4096];
  ArenaStaging staging(arena);
  EXPECT_FALSE(staging.Acquire(10 * 4096 + 1));
  StagingBuffer a = staging.Acquire(1), b = staging.Acquire(3 * 4096), c = staging.Acquire(4096);
  EXPECT_EQ(a.data(), arena);
  EXPECT_EQ(b.data(), arena + 4096);
  EXPECT_EQ(c.data(), arena + 4 * 4096);
  EXPECT_EQ(staging.used(), 5u * 4096);
  EXPECT_FALSE(staging.Acquire(6 * 4096));
  StagingBuffer d = staging.Acquire(5 * 4096);
  EXPECT_EQ(d.data(), arena + 5 * 4096);
  EXPECT_FALSE(staging.Acquire(1));
  // Between two that are free, and so all three in one.
  a = StagingBuffer();
  c = StagingBuffer();
  EXPECT_FALSE(staging.Acquire(2 * 4096));
  b = StagingBuffer();
  StagingBuffer e = staging.Acquire(5 * 4096);
  EXPECT_EQ(e.data(), arena);
  e = StagingBuffer();
  d = StagingBuffer();
  EXPECT_EQ(staging.used(), 0u);
  EXPECT_EQ(staging.Acquire(10 * 4096).data(), arena);
}

TEST(HandoffStagingTest, ASingleBufferIsAlwaysAllowed) {
  HandoffStaging staging(4096);
  StagingBuffer large = staging.Acquire(1 << 20);
  EXPECT_TRUE(large);
  EXPECT_FALSE(staging.Acquire(1));
  large = StagingBuffer();
  EXPECT_EQ(staging.used(), 0u);
}

}  // namespace
}  // namespace penstock
