#include "model/cuda/ranks/rank_threads.h"

#include <gtest/gtest.h>

#include <atomic>
#include <set>

#include "model/cuda/ranks/rank_barrier.h"

namespace penstock {
namespace {

TEST(RankThreads, EachWorksOnAThreadOfItsOwn) {
  RankThreads threads(4);
  std::vector<std::thread::id> ids(4), again(4);
  ASSERT_EQ(Message(threads.Run([&](int rank) {
              ids[static_cast<size_t>(rank)] = std::this_thread::get_id();
              return absl::OkStatus();
            })),
            "");
  ASSERT_EQ(Message(threads.Run([&](int rank) {
              again[static_cast<size_t>(rank)] = std::this_thread::get_id();
              return absl::OkStatus();
            })),
            "");
  EXPECT_EQ(ids, again);
  EXPECT_EQ(std::set(ids.begin(), ids.end()).size(), 4u);
  EXPECT_FALSE(std::set(ids.begin(), ids.end()).contains(std::this_thread::get_id()));
}

TEST(RankThreads, TheFirstRanksErrorIsReturnedOnce) {
  RankThreads threads(3);
  std::atomic<int> ran{0};
  const absl::Status status = threads.Run([&](int rank) {
    ++ran;
    return rank == 0 ? absl::OkStatus() : Internal("rank {}", rank);
  });
  EXPECT_EQ(Message(status), "rank 1");
  EXPECT_EQ(ran, 3);
  EXPECT_EQ(Message(threads.Run([](int) { return absl::OkStatus(); })), "");
}

// Many meetings, one after the other: nobody is left behind in one, nobody is told of another.
TEST(RankBarrier, WhatOneHasAllHear) {
  constexpr int kRanks = 3, kMeetings = 2000;
  RankBarrier meeting(kRanks);
  RankThreads threads(kRanks);
  std::atomic<int> wrong{0};
  ASSERT_EQ(Message(threads.Run([&](int rank) {
              for (int i = 0; i < kMeetings; ++i) {
                const bool bad = i % 3 == 0 && rank == i / 3 % kRanks;
                const absl::Status own = bad ? Internal("in {}", i) : absl::OkStatus();
                const std::string want = i % 3 == 0 ? fmt::format("in {}", i) : "";
                const bool moved = i % 5 == 0 && rank == i / 5 % kRanks;
                const StepReadiness all =
                    meeting.ArriveAndWait({.prepared = own, .memory_moved = moved});
                if (Message(all.prepared) != want) ++wrong;
                if (all.memory_moved != (i % 5 == 0)) ++wrong;
              }
              return absl::OkStatus();
            })),
            "");
  EXPECT_EQ(wrong, 0);
}

}  // namespace
}  // namespace penstock
