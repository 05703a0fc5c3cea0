#include "base/queue.h"

#include <gtest/gtest.h>

#include <memory>
#include <thread>

namespace penstock {
namespace {

constexpr Duration kLong = std::chrono::minutes(1);

TEST(BoundedQueue, RefusesAtTheBoundAndLeavesTheItem) {
  BoundedQueue<std::unique_ptr<int>> queue(1);
  EXPECT_TRUE(queue.TryPush(std::make_unique<int>(1)));
  auto second = std::make_unique<int>(2);
  EXPECT_FALSE(queue.TryPush(std::move(second)));
  ASSERT_NE(second, nullptr);
  EXPECT_EQ(**queue.Pop(kLong), 1);
  EXPECT_TRUE(queue.TryPush(std::move(second)));
}

TEST(BoundedQueue, GivesUpAfterTheTimeout) {
  BoundedQueue<int> queue(1);
  EXPECT_EQ(queue.Pop(std::chrono::milliseconds(1)), std::nullopt);
}

TEST(BoundedQueue, AfterCloseWhatIsInsideCanBeTaken) {
  BoundedQueue<int> queue(4);
  EXPECT_TRUE(queue.TryPush(1));
  queue.Close();
  EXPECT_FALSE(queue.TryPush(2));
  EXPECT_EQ(queue.Pop(kLong), 1);
  EXPECT_EQ(queue.Pop(kLong), std::nullopt);
}

TEST(BoundedQueue, CloseWakesWhoeverWaits) {
  BoundedQueue<int> queue(1);
  std::thread waiter([&] { EXPECT_EQ(queue.Pop(kLong), std::nullopt); });
  queue.Close();
  waiter.join();
}

TEST(BoundedQueue, EveryItemArrivesOnceAndInOrderOfItsSender) {
  constexpr int kSenders = 4;
  constexpr int kItems = 2000;
  BoundedQueue<std::pair<int, int>> queue(16);
  std::vector<std::thread> senders;
  for (int sender = 0; sender < kSenders; ++sender) {
    senders.emplace_back([&queue, sender] {
      for (int i = 0; i < kItems; ++i) {
        while (!queue.TryPush({sender, i})) std::this_thread::yield();
      }
    });
  }
  int next[kSenders] = {};
  for (int taken = 0; taken < kSenders * kItems; ++taken) {
    const auto item = queue.Pop(kLong);
    ASSERT_TRUE(item.has_value());
    EXPECT_EQ(item->second, next[item->first]++);
  }
  for (std::thread& sender : senders) sender.join();
  EXPECT_EQ(queue.size(), 0u);
}

}  // namespace
}  // namespace penstock
