// The order in which the emulator runs threads, and the faults of kernels that end the process.

#include "tests/cuda/emulator/emulator.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <vector>

#include "kernels/cuda/device/device.cuh"

namespace penstock::cuda {
namespace {

using emulator::Copies;
using emulator::Order;
using ::testing::ElementsAre;

constexpr LaunchShape kTwoWarps = {.x = 1, .threads = 64};

// Which of the threads 0, 1, 32 and 63 come by, before and behind a shuffle and a barrier.
std::vector<int> ThreadsThatPass(Order order) {
  const emulator::ScopedSchedule schedule(Copies::kLate, order);
  std::vector<int> passed;
  const auto pass = [&passed](int place) {
    const int thread = ThreadX();
    if (thread <= 1 || thread == 32 || thread == 63) passed.push_back(place * 100 + thread);
  };
  emulator::Run(kTwoWarps, [&] {
    pass(0);
    Shuffle(0u, 0);
    pass(1);
    SyncBlock();
    pass(2);
  });
  return passed;
}

TEST(EmulatorTest, ThreadsRunInTheOrderOfTheSchedule) {
  // The thread that arrives last goes on at once, in the order's next turn: of the shuffle lane 31,
  // or 0; of the barrier thread 62, or 1, because 63 and 0 were the first to reach it.
  EXPECT_THAT(ThreadsThatPass(Order::kAscending),
              ElementsAre(0, 1, 32, 63, 163, 100, 101, 132, 263, 200, 201, 232));
  EXPECT_THAT(ThreadsThatPass(Order::kDescending),
              ElementsAre(63, 32, 132, 1, 0, 100, 163, 101, 201, 200, 263, 232));
  EXPECT_THAT(ThreadsThatPass(Order::kWarpByWarp),
              ElementsAre(0, 1, 100, 101, 32, 63, 163, 132, 263, 232, 200, 201));
}

TEST(EmulatorTest, CopiesArriveWhenTheirGroupIsWaitedFor) {
  for (const Copies copies : {Copies::kLate, Copies::kEarly}) {
    const emulator::ScopedSchedule schedule(copies, Order::kAscending);
    alignas(16) const uint32_t global[3][4] = {{1}, {2}, {3}};
    LaunchShape shape = {.x = 1, .threads = 32, .shared_bytes = 48};
    emulator::Run(shape, [&] {
      if (ThreadX() != 7) return;
      auto* shared = reinterpret_cast<uint32_t*>(SharedMemory());
      for (int group = 0; group < 3; ++group) {
        CopyAsync16(shared + group * 4, global[group], group != 1);
        CommitCopies();
      }
      const bool late = copies == Copies::kLate;
      EXPECT_EQ(shared[0], late ? 0xffffffffu : 1u);
      WaitCopies<1>();
      EXPECT_EQ(shared[0], 1u);
      EXPECT_EQ(shared[4], 0u) << "a copy that is not valid stores zeros";
      EXPECT_EQ(shared[8], late ? 0xffffffffu : 3u);
      WaitCopies<0>();
      EXPECT_EQ(shared[8], 3u);
    });
  }
}

TEST(EmulatorDeathTest, AFaultyKernelEndsTheProcess) {
  for (const Order order : emulator::kOrders) {
    const emulator::ScopedSchedule schedule(Copies::kLate, order);
    const auto barrier = [] {
      if (ThreadX() != 40) SyncBlock();
    };
    EXPECT_DEATH(emulator::Run(kTwoWarps, barrier), "that some threads never reach");
    const auto shuffle = [] {
      if (ThreadX() != 40) Shuffle(0u, 0);
    };
    EXPECT_DEATH(emulator::Run(kTwoWarps, shuffle), "that some threads never reach");
    const auto mixed = [] { ThreadX() == 40 ? SyncWarp() : void(Ballot(true)); };
    EXPECT_DEATH(emulator::Run(kTwoWarps, mixed), "lanes of a warp call different collectives");
  }
}

}  // namespace
}  // namespace penstock::cuda
