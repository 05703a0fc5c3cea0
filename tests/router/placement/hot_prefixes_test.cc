#include "router/placement/hot_prefixes.h"

#include <gtest/gtest.h>

#include "tests/router/index/block_tree.h"

namespace penstock {
namespace {

using namespace std::chrono_literals;

constexpr uint32_t kBlockTokens = 16;

class HotPrefixesTest : public ::testing::Test {
 protected:
  // A prompt of `shared` blocks that many begin with and `own` ones.
  static std::vector<BlockId> Prompt(uint64_t family, uint32_t shared, uint64_t which,
                                     uint32_t own) {
    std::vector<BlockId> ids;
    for (uint32_t i = 0; i < shared + own; ++i) {
      BlockId id;
      const uint64_t words[2] = {family << 32 | i, i < shared ? 0 : which};
      std::memcpy(id.bytes.data(), words, sizeof(words));
      ids.push_back(id);
    }
    return ids;
  }
  void Ask(const std::string& tenant, const std::vector<BlockId>& ids, uint32_t found) {
    prefixes_.OnPlaced(
        {.tenant = tenant, .ids = ids, .blocks_found = found, .block_tokens = kBlockTokens},
        clock_.Now());
  }
  std::vector<HotPrefix> Hottest(std::optional<std::string> tenant = std::nullopt) {
    return prefixes_.Hottest(tenant, 10, clock_.Now());
  }

  ManualClock clock_;
  HotPrefixes prefixes_;
};

TEST_F(HotPrefixesTest, WhatManyPromptsBeginWithIsOnePrefix) {
  for (uint64_t i = 1; i <= 20; ++i) Ask("", Prompt(1, 8, i, 4), i == 1 ? 0 : 8);
  const auto hottest = Hottest();
  ASSERT_EQ(hottest.size(), 1u);
  EXPECT_EQ(hottest[0].tokens, 8 * kBlockTokens);
  EXPECT_EQ(hottest[0].hits, 19u);
  EXPECT_EQ(hottest[0].last, Prompt(1, 8, 0, 0).back());
}

TEST_F(HotPrefixesTest, ALongerHitIsOneOfTheShorterPrefixToo) {
  for (uint64_t i = 2; i <= 10; ++i) Ask("", Prompt(1, 8, i, 4), 8);
  for (int i = 0; i < 3; ++i) Ask("", Prompt(1, 8, 77, 6), 14);  // the same again
  const auto hottest = Hottest();
  ASSERT_EQ(hottest.size(), 2u);
  EXPECT_EQ(hottest[0].tokens, 8 * kBlockTokens);
  EXPECT_EQ(hottest[0].hits, 12u);
  EXPECT_EQ(hottest[1].tokens, 14 * kBlockTokens);
  EXPECT_EQ(hottest[1].hits, 3u);
}

TEST_F(HotPrefixesTest, APrefixWhoseHitsAllGoOnIsNotShownTwice) {
  for (int i = 0; i < 2; ++i) Ask("", Prompt(1, 8, 0, 0), 8);
  for (int i = 0; i < 30; ++i) Ask("", Prompt(1, 8, 77, 6), 14);
  const auto hottest = Hottest();
  ASSERT_EQ(hottest.size(), 1u);
  EXPECT_EQ(hottest[0].tokens, 14 * kBlockTokens);
}

TEST_F(HotPrefixesTest, HitsOfLateCountAndOldOnesFade) {
  for (int i = 0; i < 50; ++i) Ask("", Prompt(1, 8, 0, 0), 8);
  clock_.Advance(30min);
  for (int i = 0; i < 5; ++i) Ask("", Prompt(2, 4, 0, 0), 4);
  const auto hottest = Hottest();
  ASSERT_EQ(hottest.size(), 2u);
  EXPECT_EQ(hottest[0].tokens, 4 * kBlockTokens);
  EXPECT_NEAR(hottest[0].recent_hits, 5, 1e-9);
  EXPECT_LT(hottest[1].recent_hits, 1);
  EXPECT_EQ(hottest[1].hits, 50u);
}

TEST_F(HotPrefixesTest, TenantsDoNotSeeEachOthers) {
  Ask("acme", Prompt(1, 8, 0, 0), 8);
  Ask("bolt", Prompt(2, 4, 0, 0), 4);
  ASSERT_EQ(Hottest("acme").size(), 1u);
  EXPECT_EQ(Hottest("acme")[0].tokens, 8 * kBlockTokens);
  EXPECT_TRUE(Hottest("nobody").empty());
  EXPECT_TRUE(Hottest("").empty());
  EXPECT_EQ(Hottest().size(), 2u);
}

TEST_F(HotPrefixesTest, WhatIsHitStaysWhileAnyNumberComesAndGoes) {
  for (int i = 0; i < 5; ++i) Ask("", Prompt(1, 8, 0, 0), 8);
  for (uint64_t i = 10; i < 10 + 4 * HotPrefixes::kWatchedMax; ++i) Ask("", Prompt(i, 4, 0, 0), 4);
  EXPECT_EQ(prefixes_.Hottest(std::nullopt, 1 << 20, clock_.Now()).size(),
            HotPrefixes::kWatchedMax);
  EXPECT_EQ(Hottest()[0].tokens, 8 * kBlockTokens);
}

TEST_F(HotPrefixesTest, APromptThatNobodyHasIsNoPrefix) {
  Ask("", Prompt(1, 8, 0, 0), 0);
  Ask("", {}, 8);
  EXPECT_TRUE(Hottest().empty());
}

}  // namespace
}  // namespace penstock
