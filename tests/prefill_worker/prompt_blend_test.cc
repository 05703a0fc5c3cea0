#include "prefill_worker/prompt_blend.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <memory>
#include <numeric>

namespace penstock {
namespace {

using ::testing::HasSubstr;
using ::testing::IsEmpty;

constexpr KvLayout kLayout{.layers = 3, .kv_heads = 1, .head_dim = 8, .block_tokens = 16};

class PromptBlendTest : public ::testing::Test {
 protected:
  PromptBlendTest() {
    auto pool = BlockPool::Create(kLayout, 200);
    EXPECT_TRUE(pool.ok()) << pool.status();
    pool_ = *std::move(pool);
    auto cache =
        KvCacheManager::Create(*pool_, clock_, {.model_fingerprint = 1, .kv_format = "bf16"});
    EXPECT_TRUE(cache.ok()) << cache.status();
    cache_ = *std::move(cache);
    std::iota(tokens_.begin(), tokens_.end(), 0u);
  }

  absl::StatusOr<PromptParts> Name(const std::vector<uint32_t>& bounds,
                                   size_t prompt_tokens = 1000) {
    return NameParts(*cache_, "salt", tokens_, prompt_tokens, bounds, kLayout.block_tokens);
  }

  SteadyClock clock_;
  std::unique_ptr<BlockPool> pool_;
  std::unique_ptr<KvCacheManager> cache_;
  std::vector<uint32_t> tokens_ = std::vector<uint32_t>(1000);
};

TEST_F(PromptBlendTest, PartsAreNamedAsPromptsOfTheirOwn) {
  const auto parts = Name({20, 100, 200, 900});
  ASSERT_TRUE(parts.ok()) << parts.status();
  EXPECT_EQ(parts->leading, 20);
  EXPECT_EQ(parts->exact, 100) << "the first part is where it was computed";
  ASSERT_EQ(parts->parts.size(), 2u);
  // 20 leading tokens and 100 of the part fill seven blocks; of the second part, 45.
  EXPECT_EQ(parts->parts[0].begin, 100);
  EXPECT_EQ(parts->parts[0].tokens, 7 * 16 - 20);
  EXPECT_EQ(parts->parts[1].tokens, 45 * 16 - 20);
  std::vector<uint32_t> alone(tokens_.begin(), tokens_.begin() + 20);
  alone.insert(alone.end(), tokens_.begin() + 100, tokens_.begin() + 200);
  EXPECT_EQ(parts->parts[0].prompt.ids, cache_->NameBlocks("salt", alone).ids);
  const PromptBlend blend(*parts);
  alone.resize(7 * 16);
  EXPECT_EQ(blend.TokensOf(*blend.next(), tokens_), alone);
}

// In longer parts, pieces are blended one by one.
TEST_F(PromptBlendTest, PiecesFitInAStep) {
  auto parts = Name({20, 100, 200, 900});
  ASSERT_TRUE(parts.ok()) << parts.status();
  parts->blend = {.percent = 15};
  PromptBlend blend(*std::move(parts));
  ASSERT_EQ(blend.pieces().size(), 3u);
  int32_t recompute = 0;
  for (const BlendPiece& piece : blend.pieces()) recompute += piece.blended.recompute;
  EXPECT_EQ(blend.pieces()[0].begin, 100);
  EXPECT_EQ(blend.pieces()[1].begin, 200);
  EXPECT_EQ(blend.pieces()[1].end, 550);
  EXPECT_EQ(blend.pieces()[2].end, 900);
  EXPECT_EQ(recompute, 14 + 53 + 53);
}

TEST_F(PromptBlendTest, TheLastTokenOfThePromptIsComputed) {
  // The part fills its last block with the prompt's last token.
  const auto parts = Name({16, 32, 96}, 96);
  ASSERT_TRUE(parts.ok()) << parts.status();
  ASSERT_EQ(parts->parts.size(), 1u);
  EXPECT_EQ(parts->parts[0].tokens, 63);
  EXPECT_EQ(parts->parts[0].held, 64);
  EXPECT_EQ(parts->parts[0].prompt.ids.size(), 5u);
}

TEST_F(PromptBlendTest, PartsWithoutAFullBlockAreComputed) {
  const auto parts = Name({1, 40, 50});
  ASSERT_TRUE(parts.ok()) << parts.status();
  EXPECT_THAT(parts->parts, IsEmpty());
}

TEST_F(PromptBlendTest, NamesEndWithTheFirstPart) {
  const auto parts = Name({20, 100, 200, 900});
  ASSERT_TRUE(parts.ok()) << parts.status();
  PromptBlocks prompt = cache_->NameBlocks("salt", tokens_);
  const BlockId whole = prompt.whole;
  const std::vector<BlockId> exact(prompt.ids.begin(), prompt.ids.begin() + 6);
  DropBlendedNames(prompt, *parts, kLayout.block_tokens);
  EXPECT_EQ(prompt.ids, exact);
  EXPECT_EQ(prompt.whole, whole);
}

TEST_F(PromptBlendTest, TotalsAreOfAllPieces) {
  auto parts = Name({20, 100, 200, 900});
  ASSERT_TRUE(parts.ok()) << parts.status();
  parts->deviation_max = 0.5f;
  PromptBlend blend(*std::move(parts));
  blend.pieces()[0].blended.recomputed = 14;
  blend.pieces()[0].blended.deviation = 0.25f;
  blend.pieces()[1].blended.recomputed = 350;
  blend.pieces()[1].blended.deviation = 0.75f;
  const PromptBlend::Sum sum = blend.Total();
  EXPECT_EQ(sum.reused, 92 + 700);
  EXPECT_EQ(sum.recomputed, 364);
  EXPECT_EQ(sum.fallback, 350);
  EXPECT_EQ(sum.deviation, 0.75f);
}

TEST_F(PromptBlendTest, WrongBoundsAreNamed) {
  EXPECT_THAT(Message(Name({20}).status()), HasSubstr("blend_parts has 1 entries"));
  EXPECT_THAT(Message(Name({20, 20}).status()),
              HasSubstr("blend_parts[1] is 20; entries must ascend"));
  EXPECT_THAT(Message(Name({20, 901}, 900).status()), HasSubstr("up to the 900 tokens"));
}

}  // namespace
}  // namespace penstock
