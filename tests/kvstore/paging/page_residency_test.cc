// Which pages may leave memory.

#include "kvstore/paging/page_residency.h"

#include <gtest/gtest.h>

namespace penstock {
namespace {

// Layers of 16 KiB, four system pages, or of one and a half.
KvLayout Layout(int32_t head_dim) { return {.layers = 3, .kv_heads = 4, .head_dim = head_dim}; }

std::vector<ByteRange> Pass(PageResidency& residency, uint32_t block) {
  std::vector<ByteRange> leave;
  const int64_t bytes = residency.Pass(block, leave);
  size_t sum = 0;
  for (const ByteRange& range : leave) sum += range.size();
  EXPECT_EQ(bytes, static_cast<int64_t>(sum));
  return leave;
}

class PageResidencyTest : public testing::Test {
 protected:
  std::vector<ByteRange> Pass(uint32_t block) { return penstock::Pass(residency_, block); }

  PageResidency residency_{Layout(64), 2};
};

TEST_F(PageResidencyTest, AUnitIsReadOnceUntilItLeaves) {
  EXPECT_TRUE(residency_.Use(1, 2));
  EXPECT_FALSE(residency_.Use(1, 2));
  EXPECT_EQ(residency_.bytes(), 16384);
  EXPECT_FALSE(residency_.HasAny(0));
  EXPECT_TRUE(residency_.HasAny(1));
  for (int pass = 0; pass < 4; ++pass) Pass(1);
  EXPECT_TRUE(residency_.Use(1, 2));
}

TEST_F(PageResidencyTest, WhatWasUsedOnceLeavesAtTheSecondPass) {
  residency_.Take(1);
  EXPECT_EQ(residency_.bytes(), 49152);
  EXPECT_TRUE(Pass(1).empty());
  residency_.Use(1, 1);
  EXPECT_EQ(Pass(1), (std::vector<ByteRange>{{49152, 65536}, {81920, 98304}}));
  EXPECT_EQ(residency_.bytes(), 16384);
  EXPECT_TRUE(Pass(1).empty());
  EXPECT_EQ(Pass(1), (std::vector<ByteRange>{{65536, 81920}}));
  EXPECT_EQ(residency_.bytes(), 0);
  EXPECT_TRUE(Pass(1).empty());
}

// A guess stays for a pass. Where the unit is in memory, a guess does not make it stay longer.
TEST_F(PageResidencyTest, AGuessIsNoUse) {
  const std::vector<ByteRange> unit = {{81920, 98304}};
  EXPECT_TRUE(residency_.Expect(1, 2));
  EXPECT_EQ(residency_.bytes(), 16384);
  EXPECT_FALSE(residency_.Expect(1, 2));
  EXPECT_EQ(Pass(1), unit);
  EXPECT_TRUE(residency_.Use(1, 2));
  EXPECT_FALSE(residency_.Expect(1, 2));
  EXPECT_TRUE(Pass(1).empty());
  EXPECT_EQ(Pass(1), unit);
}

// Only a part of the unit is there, so the first use reads it.
TEST_F(PageResidencyTest, WhatNobodyToldOfLeavesAtTheNextPass) {
  EXPECT_TRUE(Pass(0).empty());
  std::vector<unsigned char> some(12, 0);
  some[1] = some[11] = 1;
  residency_.Count(0, some);
  EXPECT_EQ(residency_.bytes(), 8192);
  EXPECT_TRUE(residency_.Use(0, 2));
  EXPECT_EQ(Pass(0), (std::vector<ByteRange>{{0, 16384}}));
  EXPECT_EQ(Pass(0), (std::vector<ByteRange>{{32768, 49152}}));
  EXPECT_FALSE(residency_.HasAny(0));
}

// A block that was just taken is not written yet, and a unit that was just used is still being
// read: both are in memory soon.
TEST_F(PageResidencyTest, CountsKeepWhatWasToldAndAddWhatIsThere) {
  constexpr int64_t kBlock = 12 * 4096, kUnit = 4 * 4096;
  residency_.Take(0);
  residency_.Use(1, 0);
  std::vector<unsigned char> some(12, 0);
  residency_.Count(0, some);
  residency_.Count(1, some);
  EXPECT_EQ(residency_.bytes(), kBlock + kUnit);
  some[0] = some[11] = 1;
  residency_.Count(1, some);
  EXPECT_EQ(residency_.bytes(), kBlock + kUnit + 4096);
  while (residency_.bytes() > kUnit + 4096) Pass(0);
  residency_.Count(0, some);  // pages that were used while they left
  EXPECT_EQ(residency_.bytes(), 2 * 4096 + kUnit + 4096);
}

TEST_F(PageResidencyTest, WhatIsUsedOftenOutlivesWhatIsUsedOnce) {
  residency_.Take(0);
  residency_.Take(1);
  for (int token = 0; token < 3; ++token) residency_.Use(0, 0);
  for (int pass = 0; pass < 7; ++pass) Pass(0), Pass(1);
  EXPECT_FALSE(residency_.Use(0, 0));
  EXPECT_TRUE(residency_.Use(0, 1));
  EXPECT_TRUE(residency_.Use(1, 0));
}

// Layers of 6 KiB share system pages, which leave with the last layer that has them.
TEST(PageResidency, SharedPagesLeaveWithTheLastLayer) {
  const KvLayout layout = Layout(24);
  ASSERT_EQ(layout.LayerBytes(), 6144u);
  PageResidency residency(layout, 1);
  residency.Use(0, 1);
  EXPECT_EQ(residency.bytes(), 8192);
  residency.Use(0, 2);
  residency.Use(0, 1);
  EXPECT_EQ(residency.bytes(), 16384);
  EXPECT_TRUE(Pass(residency, 0).empty());
  EXPECT_EQ(Pass(residency, 0), (std::vector<ByteRange>{{12288, 20480}}));
  EXPECT_TRUE(Pass(residency, 0).empty());
  EXPECT_EQ(Pass(residency, 0), (std::vector<ByteRange>{{4096, 12288}}));
  EXPECT_EQ(residency.bytes(), 0);
}

}  // namespace
}  // namespace penstock
