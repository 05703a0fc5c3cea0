#include "kernels/cpu/thread_pool.h"

#include <gtest/gtest.h>

#include <atomic>
#include <vector>

namespace penstock {
namespace {

TEST(ThreadPoolTest, RunsEveryTaskOnceOnAThreadOfItsOwn) {
  for (const int threads : {1, 2, 4}) {
    ThreadPool pool(threads);
    EXPECT_EQ(pool.threads(), threads);
    std::vector<std::atomic<int>> inside(static_cast<size_t>(threads));
    for (int round = 0; round < 500; ++round) {
      const int64_t tasks = round % 17;
      std::vector<std::atomic<int>> runs(static_cast<size_t>(tasks));
      pool.ParallelFor(tasks, [&](int64_t task, int thread) {
        ASSERT_EQ(inside[thread].fetch_add(1), 0);
        ++runs[task];
        inside[thread].fetch_sub(1);
      });
      for (const auto& count : runs) ASSERT_EQ(count.load(), 1);
    }
  }
}

TEST(ThreadPoolTest, WakesThreadsThatWentToSleep) {
  ThreadPool pool(2);
  for (int round = 0; round < 3; ++round) {
    // Both tasks wait for each other: done only when two threads run them.
    std::atomic<int> arrived{0};
    pool.ParallelFor(2, [&](int64_t, int) {
      arrived.fetch_add(1);
      arrived.notify_all();
      for (int seen = arrived.load(); seen < 2; seen = arrived.load()) arrived.wait(seen);
    });
    EXPECT_EQ(arrived.load(), 2);
    std::this_thread::yield();
  }
}

TEST(ThreadPoolTest, ParallelForWithoutAPoolRunsInOrder) {
  std::vector<int64_t> order;
  ParallelFor(Exec{}, 5, [&](int64_t task, int thread) {
    EXPECT_EQ(thread, 0);
    order.push_back(task);
  });
  EXPECT_EQ(order, (std::vector<int64_t>{0, 1, 2, 3, 4}));
}

}  // namespace
}  // namespace penstock
