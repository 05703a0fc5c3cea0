#include "decode_worker/engine/decode_scheduler.h"

#include <gtest/gtest.h>

#include <map>

namespace penstock {
namespace {

TEST(DecodeSchedulerTest, AllRunWhenTheyFit) {
  DecodeScheduler scheduler(4);
  for (uint64_t id : {1, 2, 3}) scheduler.Add(id);
  EXPECT_EQ(scheduler.Next(), (std::vector<uint64_t>{1, 2, 3}));
  EXPECT_EQ(scheduler.Next().size(), 3u);
}

TEST(DecodeSchedulerTest, TurnsAreEqualWhenTheyDoNot) {
  DecodeScheduler scheduler(3);
  for (uint64_t id = 0; id < 7; ++id) scheduler.Add(id);
  std::map<uint64_t, int> turns;
  for (int step = 0; step < 70; ++step) {
    for (const uint64_t id : scheduler.Next()) ++turns[id];
  }
  for (const auto& [id, count] : turns) EXPECT_EQ(count, 30) << id;
}

TEST(DecodeSchedulerTest, ARemovedSequenceHasNoMoreTurns) {
  DecodeScheduler scheduler(2);
  for (uint64_t id : {1, 2, 3}) scheduler.Add(id);
  scheduler.Remove(2);
  EXPECT_EQ(scheduler.Next(), (std::vector<uint64_t>{1, 3}));
}

// A sequence of `id` wants id megabytes.
uint64_t Megabytes(uint64_t id) { return id << 20; }

TEST(DecodeSchedulerTest, TheOldestThatFitTheMemoryRun) {
  DecodeScheduler scheduler(4);
  for (uint64_t id : {4, 2, 3, 1}) scheduler.Add(id);
  for (int step = 0; step < 3; ++step) {
    EXPECT_EQ(scheduler.NextWithin(Megabytes(7), Megabytes), (std::vector<uint64_t>{1, 2, 3}));
  }
  scheduler.Remove(2);
  EXPECT_EQ(scheduler.NextWithin(Megabytes(7), Megabytes), (std::vector<uint64_t>{1, 3}));
  scheduler.Remove(1);
  EXPECT_EQ(scheduler.NextWithin(Megabytes(7), Megabytes).size(), 2u);
}

TEST(DecodeSchedulerTest, OneThatFitsNoMemoryRunsAlone) {
  DecodeScheduler scheduler(4);
  for (uint64_t id : {8, 9}) scheduler.Add(id);
  EXPECT_EQ(scheduler.NextWithin(Megabytes(7), Megabytes), (std::vector<uint64_t>{8}));
}

TEST(DecodeSchedulerTest, SequencesTakeTurnsWhereMemoryIsNotTheLimit) {
  DecodeScheduler scheduler(2);
  for (uint64_t id : {1, 2, 3}) scheduler.Add(id);
  EXPECT_EQ(scheduler.NextWithin(Megabytes(6), Megabytes), (std::vector<uint64_t>{1, 2}));
  EXPECT_EQ(scheduler.NextWithin(Megabytes(6), Megabytes), (std::vector<uint64_t>{3, 1}));
}

TEST(DecodeSchedulerTest, ABatchIsAFullOneWhereMemoryIsTheLimit) {
  DecodeScheduler scheduler(2);
  for (uint64_t id : {1, 2, 3, 9}) scheduler.Add(id);
  EXPECT_EQ(scheduler.NextWithin(Megabytes(6), Megabytes), (std::vector<uint64_t>{1, 2}));
}

}  // namespace
}  // namespace penstock
