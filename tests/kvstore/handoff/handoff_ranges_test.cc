#include <gtest/gtest.h>

#include "kvstore/handoff/handoff_coverage.h"

namespace penstock {
namespace {

// Of eight layers, 0, 1, 2, 4, 5 and 6 have a window of 40 tokens.
KvLayout Layout() {
  KvLayout layout{.layers = 8, .kv_heads = 1, .head_dim = 8, .block_tokens = 16};
  layout.group.window = 40;
  for (const size_t layer : {0, 1, 2, 4, 5, 6}) layout.group.layers.set(layer);
  return layout;
}

KvRange Range(uint32_t first_layer, uint32_t last_layer, uint32_t first_block,
              uint32_t last_block) {
  return {.first_layer = first_layer,
          .last_layer = last_layer,
          .first_block = first_block,
          .last_block = last_block};
}

// Behind 160 tokens the window begins in block 7.
TEST(HandoffRanges, LayersWithAWindowBeginAtIt) {
  EXPECT_EQ(SentRanges(Layout(), 160, Range(0, 8, 0, 10)),
            (std::vector<KvRange>{Range(3, 4, 0, 7), Range(7, 8, 0, 7), Range(0, 8, 7, 10)}));
  EXPECT_EQ(UnsentRanges(Layout(), 160, Range(0, 8, 0, 10)),
            (std::vector<KvRange>{Range(0, 3, 0, 7), Range(4, 7, 0, 7)}));
}

TEST(HandoffRanges, RangesBesideTheWindow) {
  EXPECT_EQ(SentRanges(Layout(), 160, Range(0, 8, 8, 10)),
            (std::vector<KvRange>{Range(0, 8, 8, 10)}));
  EXPECT_TRUE(UnsentRanges(Layout(), 160, Range(0, 8, 8, 10)).empty());
  EXPECT_TRUE(SentRanges(Layout(), 160, Range(4, 6, 2, 5)).empty());
  EXPECT_EQ(UnsentRanges(Layout(), 160, Range(4, 6, 2, 5)),
            (std::vector<KvRange>{Range(4, 6, 2, 5)}));
  EXPECT_EQ(SentRanges(Layout(), 30, Range(0, 8, 0, 2)), (std::vector<KvRange>{Range(0, 8, 0, 2)}));
}

TEST(HandoffRanges, OtherModelsSendAll) {
  const KvLayout plain{.layers = 8, .kv_heads = 1, .head_dim = 8};
  EXPECT_EQ(SentRanges(plain, 160, Range(0, 8, 0, 10)), (std::vector<KvRange>{Range(0, 8, 0, 10)}));
  EXPECT_TRUE(UnsentRanges(plain, 160, Range(0, 8, 0, 10)).empty());
}

// Both sides together: every cell is either sent or not.
TEST(HandoffRanges, TheyCoverTheRangeOnce) {
  for (const uint32_t tokens : {1, 40, 57, 200, 333}) {
    const auto blocks = static_cast<uint32_t>(Layout().BlocksFor(tokens));
    HandoffCoverage coverage(8, blocks);
    for (const KvRange& range : UnsentRanges(Layout(), tokens, Range(0, 8, 0, blocks))) {
      coverage.Add(range);
    }
    for (uint32_t layer = 0; layer < 8; layer += 2) {
      for (uint32_t first = 0; first < blocks; first += 3) {
        const KvRange step = Range(layer, layer + 2, first, std::min(first + 3, blocks));
        for (const KvRange& range : SentRanges(Layout(), tokens, step)) coverage.Add(range);
      }
    }
    EXPECT_TRUE(coverage.complete()) << tokens;
  }
}

}  // namespace
}  // namespace penstock
