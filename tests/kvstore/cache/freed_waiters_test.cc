#include "kvstore/cache/freed_waiters.h"

#include <gtest/gtest.h>

#include <future>
#include <memory>
#include <optional>
#include <thread>
#include <vector>

#include "kvstore/cache/block_pool.h"

namespace penstock {
namespace {

constexpr KvLayout kLayout{.layers = 1, .kv_heads = 1, .head_dim = 8, .block_tokens = 16};
constexpr auto kLong = std::chrono::seconds(60);

TEST(FreedWaiters, AChangeBeforeTheWaitIsNotMissed) {
  FreedWaiters waiters;
  const uint64_t seen = waiters.count();
  waiters.Raise();
  std::promise<void> called;
  const auto wait = waiters.WhenFreed(seen, [&] { called.set_value(); });
  EXPECT_EQ(called.get_future().wait_for(kLong), std::future_status::ready);
}

TEST(FreedWaiters, EveryWaiterIsCalledOnce) {
  FreedWaiters waiters;
  std::vector<std::promise<void>> called(20);  // a second set_value would throw
  std::vector<FreedWaiters::Wait> waits;
  for (auto& each : called) {
    waits.push_back(waiters.WhenFreed(waiters.count(), [&] { each.set_value(); }));
  }
  for (int i = 0; i < 3; ++i) waiters.Raise();
  for (auto& each : called) {
    EXPECT_EQ(each.get_future().wait_for(kLong), std::future_status::ready);
  }
}

TEST(FreedWaiters, AWaitThatEndedIsNotCalled) {
  FreedWaiters waiters;
  bool ended_called = false;
  auto ended = waiters.WhenFreed(waiters.count(), [&] { ended_called = true; });
  std::promise<void> called;
  const auto later = waiters.WhenFreed(waiters.count(), [&] { called.set_value(); });
  ended = {};
  waiters.Raise();
  EXPECT_EQ(called.get_future().wait_for(kLong), std::future_status::ready);
  EXPECT_FALSE(ended_called);
}

TEST(FreedWaiters, AWaitMayOutliveTheWaiters) {
  const auto owned = std::make_shared<int>(1);
  std::optional<FreedWaiters::Wait> wait;
  {
    FreedWaiters waiters;
    wait.emplace(waiters.WhenFreed(waiters.count(), [owned] {}));
    EXPECT_EQ(owned.use_count(), 2);
  }
  EXPECT_EQ(owned.use_count(), 1) << "the callback went with the waiters";
  wait.reset();
}

// A lost wake-up hangs one of the threads for ever.
TEST(FreedWaiters, NoWakeUpIsLostAmongThreads) {
  const auto pool = *BlockPool::Create(kLayout, 2);
  const auto take_and_drop = [&] {
    for (int i = 0; i < 2000; ++i) {
      const uint64_t seen = pool->freed().count();
      const auto credit = pool->Reserve(2);
      if (credit.ok()) continue;
      std::promise<void> freed;
      const auto wait = pool->freed().WhenFreed(seen, [&] { freed.set_value(); });
      ASSERT_EQ(freed.get_future().wait_for(kLong), std::future_status::ready);
    }
  };
  std::vector<std::jthread> threads;
  for (int i = 0; i < 4; ++i) threads.emplace_back(take_and_drop);
}

TEST(FreedWaiters, BlocksThatWereOnlyLookedAtWakeNobody) {
  const auto pool = *BlockPool::Create(kLayout, 2);
  std::vector<BlockRef> cached = pool->Reserve(2)->Take(2);
  pool->SetCached(cached, true);
  const uint64_t seen = pool->freed().count();
  const int64_t obtainable = pool->blocks_obtainable();
  pool->DropShared(pool->Share(cached), obtainable);
  EXPECT_EQ(pool->freed().count(), seen);
  // Another owner dropped a block meanwhile, and so it is idle only now.
  std::vector<BlockRef> other = pool->Share(std::span(cached).first(1));
  const int64_t before = pool->blocks_obtainable();
  std::vector<BlockRef> looked_at = pool->Share(cached);
  other.clear();
  pool->DropShared(std::move(looked_at), before);
  EXPECT_GT(pool->freed().count(), seen);
  pool->SetCached(cached, false);
}

}  // namespace
}  // namespace penstock
