#include "prefill_worker/prefill_scheduler.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <random>
#include <utility>

namespace penstock {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;

TimePoint At(Duration since_start) { return TimePoint(since_start); }

std::optional<int32_t> Always(uint64_t) { return 0; }

TEST(PrefillSchedulerTest, EveryPromptIsComputedOnceAndInOrder) {
  std::mt19937 random(7);
  PrefillScheduler scheduler;
  std::map<uint64_t, int32_t> tokens, done;
  for (uint64_t id = 0; id < 50; ++id) {
    tokens[id] = static_cast<int32_t>(1 + random() % 1900);
    scheduler.Add({.id = id, .tokens = tokens[id], .arrival = At(milliseconds(id))});
  }
  while (scheduler.size() > 0) {
    const auto budget = static_cast<int32_t>(1 + random() % 700);
    int32_t used = 0;
    for (const PrefillChunk& chunk : scheduler.Next(budget, Always)) {
      EXPECT_EQ(chunk.begin, done[chunk.prompt]);
      EXPECT_GT(chunk.tokens, 0);
      done[chunk.prompt] += chunk.tokens;
      used += chunk.tokens;
    }
    EXPECT_GT(used, 0);
    EXPECT_LE(used, budget);
  }
  EXPECT_EQ(done, tokens);
}

TEST(PrefillSchedulerTest, UndividedRangesAreInOneChunk) {
  std::mt19937 random(8);
  using Range = PrefillScheduler::Prompt::Range;
  const std::vector<Range> ranges = {{100, 400}, {400, 650}, {700, 701}, {900, 1400}};
  PrefillScheduler scheduler;
  scheduler.Add({.id = 1, .tokens = 1500, .arrival = At(seconds(0)), .undivided = ranges});
  scheduler.Add({.id = 2, .tokens = 700, .arrival = At(seconds(1))});
  std::map<uint64_t, int32_t> done;
  while (scheduler.size() > 0) {
    // A step may be too short for a range; then the other prompt, if any, has it.
    const int32_t budget = random() % 2 == 0 ? 512 : static_cast<int32_t>(1 + random() % 511);
    for (const PrefillChunk& chunk : scheduler.Next(budget, Always)) {
      EXPECT_EQ(chunk.begin, done[chunk.prompt]);
      EXPECT_LE(chunk.tokens, budget);
      const int32_t end = done[chunk.prompt] += chunk.tokens;
      for (const Range& range : ranges) {
        EXPECT_FALSE(chunk.prompt == 1 && range.begin < end && end < range.end) << end;
      }
    }
  }
  EXPECT_EQ(done[1], 1500);
  EXPECT_EQ(done[2], 700);
}

// Others use what scored prompts leave of a step.
TEST(PrefillSchedulerTest, ScoredPromptsShareASmallPartOfAStep) {
  PrefillScheduler scheduler;
  scheduler.Add({.id = 1, .tokens = 50, .arrival = At(seconds(0)), .scored = true});
  scheduler.Add({.id = 2, .tokens = 50, .arrival = At(seconds(1)), .scored = true});
  scheduler.Add({.id = 3, .tokens = 50, .arrival = At(seconds(2)), .scored = true});
  scheduler.Add({.id = 4, .tokens = 500, .arrival = At(seconds(3))});
  const auto first = scheduler.Next(512, Always);
  ASSERT_EQ(first.size(), 3u);
  EXPECT_EQ(first[0].tokens, 50);
  EXPECT_EQ(first[1].tokens, PrefillScheduler::kScoredTokensMax - 50);
  EXPECT_EQ(first[2].prompt, 4u);
  EXPECT_EQ(first[2].tokens, 512 - PrefillScheduler::kScoredTokensMax);
  const auto second = scheduler.Next(512, Always);
  ASSERT_EQ(second.size(), 3u);
  EXPECT_EQ(second[0].tokens, 36);
  EXPECT_EQ(second[1].tokens, PrefillScheduler::kScoredTokensMax - 36);
}

// A chunk ends behind the first `cut` tokens, and has the `whole` tokens before that.
TEST(PrefillSchedulerTest, WhatMustBeInOneChunkIs) {
  std::mt19937 random(9);
  for (int round = 0; round < 200; ++round) {
    PrefillScheduler scheduler;
    const auto cut = static_cast<int32_t>(40 + random() % 200);
    const auto tokens = cut + static_cast<int32_t>(random() % 50);
    const auto begun = static_cast<int32_t>(random() % (cut - 31));
    scheduler.Add({.id = 1, .tokens = tokens, .arrival = At(seconds(0)), .cut = cut, .whole = 32});
    int32_t done = begun;
    bool whole = false;
    while (scheduler.size() > 0) {
      const auto budget = static_cast<int32_t>(1 + random() % 64);
      const auto chunks = scheduler.Next(budget, [&](uint64_t) { return begun; });
      if (chunks.empty()) {
        EXPECT_EQ(done, cut - 32) << "only the tokens that must be together may wait";
        EXPECT_LT(budget, 32);
        continue;
      }
      EXPECT_EQ(chunks[0].begin, done);
      EXPECT_LE(chunks[0].tokens, budget);
      done += chunks[0].tokens;
      whole = whole || (done == cut && chunks[0].tokens >= 32);
      EXPECT_TRUE(done <= cut - 32 || done >= cut) << done << " of " << cut;
    }
    EXPECT_EQ(done, tokens);
    EXPECT_TRUE(whole);
  }
}

// Behind the cut, chunks end where the sequence is compacted.
TEST(PrefillSchedulerTest, FurtherCutsEndChunks) {
  PrefillScheduler scheduler;
  scheduler.Add({.id = 1,
                 .tokens = 130,
                 .arrival = At(seconds(0)),
                 .cut = 40,
                 .next_cut = 60,
                 .cut_tokens = 24,
                 .whole = 1});
  std::vector<int32_t> chunks;
  while (scheduler.size() > 0) chunks.push_back(scheduler.Next(22, Always).at(0).tokens);
  EXPECT_EQ(chunks, (std::vector<int32_t>{22, 18, 20, 22, 2, 22, 2, 22}));
}

// The `whole` tokens before such an end are in one chunk. Behind the last one, chunks end anywhere.
TEST(PrefillSchedulerTest, FurtherCutsHaveTheirTokensInOneChunk) {
  std::mt19937 random(11);
  for (int round = 0; round < 200; ++round) {
    PrefillScheduler scheduler;
    const int32_t slack = 32 + static_cast<int32_t>(random() % 60);
    const int32_t tokens = 300 + static_cast<int32_t>(random() % 100);
    scheduler.Add({.id = 1,
                   .tokens = tokens,
                   .arrival = At(seconds(0)),
                   .cut = 40,
                   .next_cut = 40 + slack,
                   .cut_tokens = slack,
                   .whole = 32});
    int32_t done = 0;
    while (scheduler.size() > 0) {
      const auto chunks = scheduler.Next(static_cast<int32_t>(1 + random() % 64), Always);
      if (chunks.empty()) continue;
      const int32_t begin = std::exchange(done, done + chunks[0].tokens);
      const int32_t cut = 40 + (std::max(0, done - 40) + slack - 1) / slack * slack;
      if (cut > tokens) continue;
      EXPECT_TRUE(done <= cut - 32 || (done == cut && begin <= cut - 32)) << done << " of " << cut;
    }
    EXPECT_EQ(done, tokens);
  }
}

// Others go on while a prompt waits for a step with room for such a chunk.
TEST(PrefillSchedulerTest, WhatDoesNotFitBlocksNobody) {
  PrefillScheduler scheduler;
  scheduler.Add({.id = 1, .tokens = 32, .arrival = At(seconds(0)), .cut = 32, .whole = 32});
  scheduler.Add({.id = 2, .tokens = 90, .arrival = At(seconds(1))});
  const auto first = scheduler.Next(20, Always);
  ASSERT_EQ(first.size(), 1u);
  EXPECT_EQ(first[0].prompt, 2u);
  EXPECT_EQ(first[0].tokens, 20);
  const auto second = scheduler.Next(64, Always);
  ASSERT_EQ(second.size(), 2u);
  EXPECT_EQ(second[0].prompt, 1u);
  EXPECT_EQ(second[0].tokens, 32);
}

TEST(PrefillSchedulerTest, ShortestSlackGoesFirst) {
  PrefillScheduler scheduler;
  scheduler.SetTokenTime(milliseconds(1));
  scheduler.Add({.id = 1, .tokens = 100, .arrival = At(seconds(0)), .deadline = At(seconds(5))});
  scheduler.Add({.id = 2, .tokens = 100, .arrival = At(seconds(0)), .deadline = At(seconds(2))});
  // A later deadline, but so much to do that it has to start before both.
  scheduler.Add({.id = 3, .tokens = 5500, .arrival = At(seconds(0)), .deadline = At(seconds(6))});
  EXPECT_EQ(scheduler.Next(64, Always).front().prompt, 3u);
  scheduler.Remove(3);
  EXPECT_EQ(scheduler.Next(64, Always).front().prompt, 2u);
}

TEST(PrefillSchedulerTest, AgeComesBeforeLaterArrivalsWithoutDeadline) {
  PrefillScheduler scheduler;
  scheduler.Add({.id = 1, .tokens = 10, .arrival = At(seconds(40))});
  scheduler.Add({.id = 2, .tokens = 10, .arrival = At(seconds(1))});
  EXPECT_EQ(scheduler.Next(5, Always).front().prompt, 2u);
}

TEST(PrefillSchedulerTest, ShortPromptsPassALongOneForSomeTime) {
  PrefillScheduler scheduler;
  scheduler.SetTokenTime(milliseconds(1));
  scheduler.Add({.id = 1, .tokens = 10'000, .arrival = At(seconds(0))});
  scheduler.Add({.id = 2, .tokens = 10, .arrival = At(seconds(25))});
  EXPECT_EQ(scheduler.Next(5, Always).front().prompt, 1u);
  scheduler.Add({.id = 3, .tokens = 10, .arrival = At(seconds(15))});
  EXPECT_EQ(scheduler.Next(5, Always).front().prompt, 3u);
}

TEST(PrefillSchedulerTest, ADeadlineCannotMakeAPromptWaitLonger) {
  PrefillScheduler scheduler;
  scheduler.SetTokenTime(milliseconds(1));
  scheduler.Add({.id = 1, .tokens = 10, .arrival = At(seconds(1))});
  scheduler.Add({.id = 2, .tokens = 10, .arrival = At(seconds(0)), .deadline = At(seconds(900))});
  EXPECT_EQ(scheduler.Next(5, Always).front().prompt, 2u);
}

TEST(PrefillSchedulerTest, APromptWithoutBlocksLetsOthersPass) {
  PrefillScheduler scheduler;
  scheduler.Add({.id = 1, .tokens = 10, .arrival = At(seconds(0))});
  scheduler.Add({.id = 2, .tokens = 10, .arrival = At(seconds(1))});
  const auto chunks = scheduler.Next(
      100, [](uint64_t id) { return id == 2 ? std::optional<int32_t>(0) : std::nullopt; });
  ASSERT_EQ(chunks.size(), 1u);
  EXPECT_EQ(chunks.front().prompt, 2u);
  EXPECT_EQ(scheduler.tokens_waiting(), 10);
}

TEST(PrefillSchedulerTest, ABudgetIsSharedBetweenPrompts) {
  PrefillScheduler scheduler;
  scheduler.Add({.id = 1, .tokens = 30, .arrival = At(seconds(0))});
  scheduler.Add({.id = 2, .tokens = 100, .arrival = At(seconds(1))});
  const auto chunks = scheduler.Next(64, Always);
  ASSERT_EQ(chunks.size(), 2u);
  EXPECT_EQ(chunks[0].tokens, 30);
  EXPECT_EQ(chunks[1].tokens, 34);
}

TEST(PrefillSchedulerTest, WhatIsCachedIsNotComputed) {
  PrefillScheduler scheduler;
  scheduler.Add({.id = 1, .tokens = 100, .arrival = At(seconds(0))});
  const auto chunks = scheduler.Next(30, [](uint64_t) { return std::optional<int32_t>(64); });
  ASSERT_EQ(chunks.size(), 1u);
  EXPECT_EQ(chunks[0].begin, 64);
  EXPECT_EQ(chunks[0].tokens, 30);
  EXPECT_EQ(scheduler.tokens_waiting(), 6);
}

TEST(PrefillSchedulerTest, AChunkIsCutToItsRoom) {
  PrefillScheduler scheduler;
  scheduler.Add({.id = 1, .tokens = 100, .arrival = {}});
  scheduler.Add({.id = 2, .tokens = 100, .arrival = {}});
  int32_t room = 10;
  const auto of_the_first = [&](uint64_t id, int32_t, int32_t tokens) {
    return id == 1 ? std::min(room, tokens) : tokens;
  };
  const auto first = scheduler.Next(64, Always, of_the_first);
  ASSERT_EQ(first.size(), 2u);
  EXPECT_EQ(first[0].tokens, 10);
  EXPECT_EQ(first[1].tokens, 54);
  room = 0;
  const auto second = scheduler.Next(64, Always, of_the_first);
  ASSERT_EQ(second.size(), 1u) << "another prompt goes on meanwhile";
  EXPECT_EQ(second[0].prompt, 2u);
  room = 100;
  const auto third = scheduler.Next(64, Always, of_the_first);
  EXPECT_EQ(third.front().begin, 10);
}

}  // namespace
}  // namespace penstock
