#include "base/thread_stack.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <thread>

#include "base/thread_name.h"
#include "tests/support/wait_until.h"

namespace penstock {

// Not in an anonymous namespace: the optimiser keeps the name.
__attribute__((noinline)) void LoopThatNeverBeats(const std::atomic<bool>& ended,
                                                  std::atomic<bool>& begun) {
  begun = true;
  while (!ended) {
  }
  begun = false;  // no tail call
}

namespace {

using ::testing::Contains;
using ::testing::HasSubstr;

class ThreadStackTest : public ::testing::Test {
 protected:
  ThreadStackTest()
      : thread_([this] {
          NameThisThread("stack-test");
          LoopThatNeverBeats(ended_, begun_);
        }) {
    EXPECT_TRUE(WaitUntil([this] { return begun_.load(); }));
  }
  ~ThreadStackTest() override {
    ended_ = true;
    thread_.join();
  }

  std::atomic<bool> ended_{false}, begun_{false};
  std::thread thread_;
};

TEST_F(ThreadStackTest, NamesTheLoopThatAThreadIsIn) {
  const std::optional<pid_t> thread = FindThread("stack-test");
  ASSERT_TRUE(thread.has_value());
  for (int i = 0; i < 3; ++i) {
    EXPECT_THAT(StackOf(*thread, std::chrono::seconds(30)),
                Contains(HasSubstr("LoopThatNeverBeats")));
  }
  EXPECT_TRUE(begun_) << "the thread goes on";
}

TEST_F(ThreadStackTest, KnowsNoOtherThread) {
  EXPECT_FALSE(FindThread("stack-tes").has_value());
  EXPECT_TRUE(StackOf(1 << 22, std::chrono::seconds(30)).empty());
}

}  // namespace
}  // namespace penstock
