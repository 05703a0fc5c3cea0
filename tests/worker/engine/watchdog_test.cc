#include "worker/engine/watchdog.h"

#include <gtest/gtest.h>

#include <atomic>
#include <vector>

#include "base/mutex.h"
#include "base/progress.h"
#include "tests/support/wait_until.h"

namespace penstock {
namespace {

using std::chrono::milliseconds;

// The reports of a watchdog, in order.
class Heard {
 public:
  void Add(bool stalled) {
    MutexLock lock(mutex_);
    said_.push_back(stalled);
    changed_.NotifyAll();
  }
  // False when it has not said `count` things within 20 s.
  bool Await(size_t count) {
    MutexLock lock(mutex_);
    const auto end = std::chrono::steady_clock::now() + std::chrono::seconds(20);
    while (said_.size() < count && std::chrono::steady_clock::now() < end) {
      changed_.WaitFor(mutex_, milliseconds(100));
    }
    return said_.size() >= count;
  }
  std::vector<bool> said() {
    MutexLock lock(mutex_);
    return said_;
  }

 private:
  Mutex mutex_;
  CondVar changed_;
  std::vector<bool> said_ GUARDED_BY(mutex_);
};

TEST(Watchdog, SaysOnceThatALoopStandsAndOnceThatItTurns) {
  Progress progress;
  Heard heard;
  Watchdog watchdog([&] { return progress.beats(); }, milliseconds(50),
                    [&](bool stalled) { heard.Add(stalled); });
  ASSERT_TRUE(heard.Await(1));
  EXPECT_TRUE(watchdog.stalled());
  progress.Beat();
  ASSERT_TRUE(heard.Await(2));
  const std::vector<bool> said = heard.said();
  EXPECT_TRUE(said[0]);
  EXPECT_FALSE(said[1]);
}

TEST(Watchdog, IsSilentWhileALoopTurns) {
  // The loop turns once in five looks, however long this machine pauses.
  std::atomic<uint64_t> looks = 0;
  Heard heard;
  Watchdog watchdog([&] { return ++looks / 5; }, milliseconds(50),
                    [&](bool stalled) { heard.Add(stalled); });
  ASSERT_TRUE(WaitUntil([&] { return looks > 50; }));  // A stalled loop is reported after 10.
  EXPECT_TRUE(heard.said().empty());
  EXPECT_FALSE(watchdog.stalled());
}

}  // namespace
}  // namespace penstock
