#include "base/queue.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <atomic>
#include <memory>
#include <string>
#include <thread>

#include "tests/support/files.h"
#include "tests/support/wait_until.h"

namespace penstock {
namespace {

constexpr Duration kLong = std::chrono::minutes(1);

// True when a thread of this process is blocked in the kernel, as in a wait for a condition.
bool Sleeps(pid_t thread) {
  const std::string stat = ReadFile("/proc/self/task/" + std::to_string(thread) + "/stat");
  const size_t name_end = stat.rfind(") ");  // "7 (name) S ...": see proc_pid_stat(5)
  return name_end != std::string::npos && stat.at(name_end + 2) == 'S';
}

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
  std::atomic<pid_t> waiter_id = 0;
  const auto start = std::chrono::steady_clock::now();
  std::thread waiter([&] {
    waiter_id = gettid();
    EXPECT_EQ(queue.Pop(kLong), std::nullopt);
  });
  EXPECT_TRUE(WaitUntil([&] { return waiter_id != 0 && Sleeps(waiter_id); }));
  queue.Close();
  waiter.join();
  EXPECT_LT(std::chrono::steady_clock::now() - start, kLong) << "Pop ended by its timeout";
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
