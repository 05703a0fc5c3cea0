#include "worker/engine/kv_compaction.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstring>

#include "kernels/eviction/kv_evictor.h"
#include "tests/kernels/eviction/key_pages.h"

namespace penstock {
namespace {

constexpr int32_t kHeads = 4, kKvHeads = 2, kHeadDim = 16, kLayers = 2;
constexpr float kScale = 0.25f;

KvEviction Rule(const char* policy) { return EvictionOf(policy).value(); }

TEST(KvCompactionTest, TheMethodSaysHowManyTokensItObserves) {
  EXPECT_EQ(CompactionScores::Observed(Rule("snapkv:64+100")), 32);
  EXPECT_EQ(CompactionScores::Observed(Rule("tova:64+100")), 1);
  EXPECT_EQ(CompactionScores::Observed(Rule("h2o:64+100")), 100);
  EXPECT_EQ(CompactionScores::Observed(Rule("streaming:64+100")), 0);
  for (const std::string& name : KvEvictionNames()) {
    const KvEvictionMethod method = EvictionOf(name + ":64")->method;
    const KvEviction least{
        .method = method, .keep_tokens = 64, .slack_tokens = SlackTokensMin(method)};
    const KvEviction most{
        .method = method, .keep_tokens = 64, .slack_tokens = SlackTokensMax(method)};
    EXPECT_LE(CompactionScores::Observed(least), static_cast<int32_t>(least.slack_tokens)) << name;
    EXPECT_LE(CompactionScores::Observed(most), static_cast<int32_t>(kAgainTokensMax))
        << name << ": a decode step computes them again";
  }
}

TEST(KvCompactionTest, SpansAreTheLeadingSlots) {
  const EvictionRule rule = CompactionRuleOf(Rule("h2o:100+16@2-10,20-30"));
  EXPECT_EQ(rule.keep.first, 18);
  EXPECT_EQ(rule.keep.last, 50);
  EXPECT_TRUE(rule.keep.spans.empty());
}

class ObservingCompactionTest : public testing::TestWithParam<const char*> {
 protected:
  const KvEviction eviction_ = Rule(GetParam());
  const int64_t limit_ = eviction_.limit();
  const int32_t observed_ = CompactionScores::Observed(eviction_);
  const KvLayout layout_{
      .layers = kLayers, .kv_heads = kKvHeads, .head_dim = kHeadDim, .block_tokens = 8};
  KeyPages pages_{layout_, limit_, layout_.BlocksFor(limit_), 7};
  CpuEvictor evictor_{Exec()};
  const EvictionAttention attention_{
      .heads = kHeads, .scale = kScale, .cap = 0, .evictor = &evictor_};
  const std::vector<float> queries_ = RandomData(8).Floats(kLayers * observed_ * kHeads * kHeadDim);

  // Of the tokens from `first` on, the last of which is the sequence's last.
  View<const float, 2> Queries(int32_t layer, int32_t first, int32_t count) const {
    const int64_t width = kHeads * kHeadDim;
    return {queries_.data() + (layer * observed_ + first) * width, {count, width}};
  }

  // The slots that the method keeps, of scores that are computed at once.
  std::vector<uint32_t> Kept(int32_t layer, int32_t head) {
    const EvictionRule rule = CompactionRuleOf(eviction_);
    std::vector<float> scores(static_cast<size_t>(kKvHeads * limit_));
    ScoreKeys(Exec(), {.scoring = rule.scoring,
                       .kv = pages_.kv(),
                       .layer = layer,
                       .blocks = pages_.blocks(),
                       .tokens = limit_,
                       .queries = Queries(layer, 0, observed_),
                       .heads = kHeads,
                       .scale = kScale,
                       .scores = {scores.data(), {kKvHeads, limit_}}});
    return ChooseSlots(
        std::span(scores).subspan(static_cast<size_t>(head * limit_), static_cast<size_t>(limit_)),
        rule.keep);
  }

  std::string Row(const KvRowsAt& at) {
    const std::byte* layer = pages_.kv().Layer(at.block, at.layer);
    const auto* codes =
        reinterpret_cast<const char*>(layer + layout_.CodesAt(at.kv_head, at.plane, at.slot));
    return std::string(codes, layout_.RowBytes(at.plane));
  }
};

// The queries come in two parts, as a prefill worker's chunks bring them.
TEST_P(ObservingCompactionTest, KeepsWhatTheObservedTokensAttendTo) {
  CompactionScores scores;
  const int32_t part = observed_ / 3;
  for (int32_t layer = 0; layer < kLayers; ++layer) {
    const auto add = [&](int32_t first, int32_t count) {
      if (count == 0) return;
      scores.Add(attention_, pages_.kv(), eviction_,
                 {.layer = layer,
                  .blocks = pages_.blocks(),
                  .tokens = limit_ - observed_ + first + count,
                  .queries = Queries(layer, first, count)});
    };
    add(0, part);
    add(part, observed_ - part);
  }
  CompactKv(attention_, pages_.kv(),
            {.eviction = eviction_,
             .evicted = 0,
             .from = pages_.blocks(),
             .to = pages_.free_blocks(),
             .scores = scores});
  EXPECT_EQ(scores.layers(), 0) << "they are used up";
  for (int32_t layer = 0; layer < kLayers; ++layer) {
    for (int32_t head = 0; head < kKvHeads; ++head) {
      const std::vector<uint32_t> kept = Kept(layer, head);
      ASSERT_EQ(kept.size(), eviction_.keep_tokens);
      for (size_t i = 0; i < kept.size(); ++i) {
        for (const KvPlane plane : {KvPlane::kKeys, KvPlane::kValues}) {
          const auto slot = static_cast<int64_t>(i);
          ASSERT_EQ(Row(pages_.At(pages_.free_blocks(), layer, head, plane, slot)),
                    Row(pages_.At(pages_.blocks(), layer, head, plane, kept[i])))
              << "layer " << layer << " head " << head << " slot " << i;
        }
      }
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Methods, ObservingCompactionTest,
                         testing::Values("snapkv:64+32", "tova:64+16", "h2o:64+24", "h2o:66+128"),
                         [](const auto& test) {
                           const std::string policy = test.param;
                           return policy.substr(0, policy.find(':')) +
                                  policy.substr(policy.find('+') + 1);
                         });

}  // namespace
}  // namespace penstock
