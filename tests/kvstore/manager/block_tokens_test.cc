#include "kvstore/manager/block_tokens.h"

#include <gtest/gtest.h>

#include <numeric>

namespace penstock {
namespace {

constexpr int32_t kBlockTokens = 4;

class BlockTokensTest : public ::testing::Test {
 protected:
  // Prompts with equal seeds begin alike.
  static std::vector<uint32_t> Tokens(uint32_t seed, size_t blocks) {
    std::vector<uint32_t> tokens(blocks * kBlockTokens);
    std::iota(tokens.begin(), tokens.end(), seed * 1000);
    return tokens;
  }
  static std::vector<BlockId> Ids(uint32_t seed, size_t blocks) {
    return HashBlocks(BlockId(), Tokens(seed, blocks), kBlockTokens);
  }
  static void Keep(BlockTokens& book, uint32_t seed, size_t blocks) {
    book.Keep(BlockId(), Ids(seed, blocks), Tokens(seed, blocks));
  }
  static size_t Known(const BlockTokens& book, std::span<const BlockId> ids) {
    size_t known = 0;
    for (const auto& content : book.Find(ids)) known += content ? 1 : 0;
    return known;
  }

  BlockTokens book_{kBlockTokens, /*retired_max=*/3};
};

TEST_F(BlockTokensTest, ABlockHasItsTokensAndItsParent) {
  Keep(book_, 1, 2);
  const auto ids = Ids(1, 3);
  const auto found = book_.Find(ids);
  ASSERT_TRUE(found[0] && found[1]);
  EXPECT_EQ(found[0]->tokens, (std::vector<uint32_t>{1000, 1001, 1002, 1003}));
  EXPECT_TRUE(found[0]->first);
  EXPECT_EQ(found[1]->tokens, (std::vector<uint32_t>{1004, 1005, 1006, 1007}));
  EXPECT_EQ(found[1]->parent, ids[0]);
  EXPECT_FALSE(found[1]->first);
  EXPECT_FALSE(found[2]);
}

TEST_F(BlockTokensTest, ALongerPromptAddsOnlyItsEnd) {
  Keep(book_, 1, 2);
  Keep(book_, 1, 5);
  EXPECT_EQ(book_.size(), 5u);
  EXPECT_EQ(Known(book_, Ids(1, 5)), 5u);
}

TEST_F(BlockTokensTest, WhatATierStillServesIsKept) {
  Keep(book_, 1, 2);
  const auto ids = Ids(1, 2);
  book_.ServeBelow(ids[0], true);
  book_.LeaveDevice(ids);
  for (uint32_t seed = 2; seed < 8; ++seed) {  // More retirements than are kept.
    Keep(book_, seed, 1);
    book_.LeaveDevice(Ids(seed, 1));
  }
  EXPECT_EQ(Known(book_, ids), 1u);
  EXPECT_TRUE(book_.Find(ids)[0]);
  EXPECT_EQ(book_.size(), 4u);  // the one below, and the three that left last
}

TEST_F(BlockTokensTest, ALowerTierMayAnnounceABlockAfterItLeftTheDevice) {
  Keep(book_, 1, 1);
  book_.LeaveDevice(Ids(1, 1));
  book_.ServeBelow(Ids(1, 1)[0], true);
  for (uint32_t seed = 2; seed < 8; ++seed) {
    Keep(book_, seed, 1);
    book_.LeaveDevice(Ids(seed, 1));
  }
  EXPECT_EQ(Known(book_, Ids(1, 1)), 1u);
  book_.ServeBelow(Ids(1, 1)[0], false);
  for (uint32_t seed = 8; seed < 11; ++seed) {
    Keep(book_, seed, 1);
    book_.LeaveDevice(Ids(seed, 1));
  }
  EXPECT_EQ(Known(book_, Ids(1, 1)), 0u);
  EXPECT_EQ(book_.size(), 3u);
}

TEST_F(BlockTokensTest, ABlockThatCameBackIsNotForgottenWithItsOldRetirement) {
  Keep(book_, 1, 1);
  book_.LeaveDevice(Ids(1, 1));
  Keep(book_, 1, 1);
  for (uint32_t seed = 2; seed < 8; ++seed) {
    Keep(book_, seed, 1);
    book_.LeaveDevice(Ids(seed, 1));
  }
  EXPECT_EQ(Known(book_, Ids(1, 1)), 1u);
}

// A lower tier may have a block without its parents.
TEST_F(BlockTokensTest, ParentsAreLearntAgainWhenOnlyTheirChildIsKnown) {
  Keep(book_, 1, 2);
  const auto ids = Ids(1, 2);
  book_.ServeBelow(ids[1], true);
  book_.LeaveDevice(ids);
  for (uint32_t seed = 2; seed < 8; ++seed) {
    Keep(book_, seed, 1);
    book_.LeaveDevice(Ids(seed, 1));
  }
  ASSERT_EQ(Known(book_, ids), 1u);
  Keep(book_, 1, 2);
  EXPECT_EQ(Known(book_, ids), 2u);
}

TEST_F(BlockTokensTest, UnknownBlocksAreNoTrouble) {
  book_.LeaveDevice(Ids(1, 3));
  book_.ServeBelow(Ids(1, 1)[0], true);
  EXPECT_EQ(book_.size(), 0u);
}

}  // namespace
}  // namespace penstock
