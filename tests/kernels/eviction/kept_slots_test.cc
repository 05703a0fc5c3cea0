#include "kernels/eviction/kept_slots.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <random>

namespace penstock {
namespace {

using ::testing::ElementsAre;

TEST(KeptSlotsTest, KeepsAllWhereThereIsRoom) {
  EXPECT_THAT(ChooseSlots(std::vector<float>{3, 1, 2}, {.keep = 3}), ElementsAre(0, 1, 2));
  EXPECT_THAT(ChooseSlots(std::vector<float>{3, 1, 2}, {.keep = 9, .first = 4, .last = 5}),
              ElementsAre(0, 1, 2));
  EXPECT_THAT(ChooseSlots({}, {.keep = 1}), ElementsAre());
}

TEST(KeptSlotsTest, KeepsTheHighestInTheirOrder) {
  EXPECT_THAT(ChooseSlots(std::vector<float>{1, 9, 3, 8, 2}, {.keep = 2}), ElementsAre(1, 3));
  EXPECT_THAT(ChooseSlots(std::vector<float>{1, 9, 3, 8, 2}, {.keep = 3}), ElementsAre(1, 2, 3));
}

TEST(KeptSlotsTest, OfEqualScoresTheEarlierStays) {
  EXPECT_THAT(ChooseSlots(std::vector<float>{5, 5, 5, 5, 5}, {.keep = 2}), ElementsAre(0, 1));
}

TEST(KeptSlotsTest, TheFirstAndLastStayWhateverTheirScore) {
  const std::vector<float> scores = {0, 0, 4, 9, 6, 0, 0};
  EXPECT_THAT(ChooseSlots(scores, {.keep = 4, .first = 1, .last = 2}), ElementsAre(0, 3, 5, 6));
  EXPECT_THAT(ChooseSlots(scores, {.keep = 3, .first = 1, .last = 2}), ElementsAre(0, 5, 6));
}

TEST(KeptSlotsTest, PoolingKeepsNeighbours) {
  const std::vector<float> scores = {0, 0, 9, 0, 0, 5, 6, 7, 0};
  EXPECT_THAT(ChooseSlots(scores, {.keep = 3}), ElementsAre(2, 6, 7));
  EXPECT_THAT(ChooseSlots(scores, {.keep = 3, .pool = 3}), ElementsAre(1, 2, 3));
  EXPECT_THAT(ChooseSlots(scores, {.keep = 5, .pool = 3}), ElementsAre(1, 2, 3, 6, 7));
  const std::vector<float> broken = {1, NAN, 2, 0, 0, 0};
  EXPECT_THAT(ChooseSlots(broken, {.keep = 3, .pool = 3}), ElementsAre(1, 2, 3));
  // The last ones, which stay anyway, lend their neighbours nothing.
  EXPECT_THAT(ChooseSlots(std::vector<float>{1, 0, 0, 0, 99}, {.keep = 2, .last = 1, .pool = 3}),
              ElementsAre(0, 4));
}

TEST(KeptSlotsTest, NanIsLessThanEveryNumber) {
  const std::vector<float> scores = {NAN, 1, NAN, -5, 2};
  EXPECT_THAT(ChooseSlots(scores, {.keep = 3}), ElementsAre(1, 3, 4));
}

// Against sorting, over random scores with many equal ones.
TEST(KeptSlotsTest, AgreesWithSorting) {
  std::mt19937 random(3);
  for (int round = 0; round < 300; ++round) {
    const auto size = static_cast<int64_t>(1 + random() % 60);
    std::vector<float> scores(static_cast<size_t>(size));
    for (float& score : scores) score = static_cast<float>(random() % 8);
    const auto keep = static_cast<int64_t>(1 + random() % 60);
    const auto first = static_cast<int64_t>(random() % keep) / 2;
    const auto last = static_cast<int64_t>(random() % keep) / 2;
    std::vector<std::pair<float, uint32_t>> order;
    for (int64_t i = 0; i < size; ++i) {
      const bool stays = i < first || i >= size - last;
      order.emplace_back(stays ? -1e9f : -scores[i], static_cast<uint32_t>(i));
    }
    std::sort(order.begin(), order.end());
    std::vector<uint32_t> expected;
    for (int64_t i = 0; i < std::min(keep, size); ++i) expected.push_back(order[i].second);
    std::sort(expected.begin(), expected.end());
    EXPECT_EQ(ChooseSlots(scores, {.keep = keep, .first = first, .last = last}), expected)
        << size << " slots, keep " << keep << ", " << first << " first, " << last << " last";
  }
}

TEST(KeptSlotsTest, SpansStayBehindTheFirst) {
  const std::vector<float> scores = {0, 0, 1, 9, 2, 0, 0, 8, 0, 0};
  const KeepRule rule{.keep = 6, .first = 1, .last = 1, .spans = {{.begin = 5, .end = 7}}};
  EXPECT_EQ(LeadingSlots(rule), 3);
  EXPECT_THAT(ChooseSlots(scores, rule), ElementsAre(0, 5, 6, 3, 7, 9));
  // The last ones are those behind which no further slot is: a span takes none of their room.
  EXPECT_THAT(ChooseSlots(scores, {.keep = 4, .last = 2, .spans = {{.begin = 8, .end = 10}}}),
              ElementsAre(8, 9, 6, 7));
  // A slot that stays for two reasons takes the room of one.
  const KeepRule twice{.keep = 4, .first = 3, .spans = {{.begin = 1, .end = 4}}};
  EXPECT_EQ(LeadingSlots(twice), 4);
  EXPECT_THAT(ChooseSlots(scores, twice), ElementsAre(0, 1, 2, 3));
}

TEST(KeptSlotsTest, SpansComeFirstWhereAllIsKept) {
  EXPECT_THAT(ChooseSlots(std::vector<float>{3, 1, 2, 0},
                          {.keep = 4, .first = 1, .spans = {{.begin = 2, .end = 3}}}),
              ElementsAre(0, 2, 1, 3));
}

// So that what a span holds never leaves, however often the rest is evicted.
TEST(KeptSlotsTest, LaterEvictionsKeepWhatSpansHold) {
  std::mt19937 random(5);
  const KeepRule rule{.keep = 12,
                      .first = 2,
                      .last = 3,
                      .pool = 3,
                      .spans = {{.begin = 1, .end = 4}, {.begin = 20, .end = 23}}};
  const KeepRule later = LaterRule(rule);
  EXPECT_EQ(later.first, 7);
  std::vector<uint32_t> held(40);  // the token in each slot
  for (uint32_t i = 0; i < 40; ++i) held[i] = i;
  for (int round = 0; round < 20; ++round) {
    std::vector<float> scores(held.size());
    for (float& score : scores) score = static_cast<float>(random() % 100);
    std::vector<uint32_t> kept;
    for (const uint32_t slot : ChooseSlots(scores, round == 0 ? rule : later)) {
      kept.push_back(held[slot]);
    }
    ASSERT_EQ(kept.size(), 12u);
    EXPECT_THAT(std::vector<uint32_t>(kept.begin(), kept.begin() + 7),
                ElementsAre(0, 1, 2, 3, 20, 21, 22));
    held = kept;
    for (uint32_t i = 0; i < 8; ++i) held.push_back(100 + static_cast<uint32_t>(round) * 8 + i);
  }
}

}  // namespace
}  // namespace penstock
