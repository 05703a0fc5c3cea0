// The forward pass over a sequence of which a part of the keys and values was evicted: against a
// plain forward pass in double in which later tokens do not see what went.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>
#include <random>
#include <set>

#include "kernels/cpu/isa.h"
#include "kernels/eviction/kv_evictor.h"
#include "model/forward/transformer_runner.h"
#include "tests/model/forward/transformer_reference.h"

namespace penstock {
namespace {

using ::testing::HasSubstr;

constexpr size_t kPrompt = 150, kMore = 9;
constexpr int64_t kObserved = 12;
constexpr int64_t kKept = 40;
const KeepRule kRule{.keep = kKept, .first = 0, .last = kObserved, .pool = 5};
constexpr auto kEvicted = static_cast<int32_t>(kPrompt - kKept);

const ModelConfig kConfig{.layers = 3,
                          .hidden = 48,
                          .intermediate = 64,
                          .heads = 4,
                          .kv_heads = 2,
                          .head_dim = 16,
                          .vocab = 101,
                          .max_position = 400};

std::vector<uint32_t> Tokens() {
  std::mt19937_64 random(5);
  std::vector<uint32_t> tokens(kPrompt + kMore);
  for (uint32_t& token : tokens) token = static_cast<uint32_t>(random() % kConfig.vocab);
  return tokens;
}

class EvictedAttentionTest : public ::testing::TestWithParam<Isa> {
 protected:
  EvictedAttentionTest() {
    KvLayout layout = runner_.kv_layout();
    memory_ = Buffer(40 * layout.BlockStride());
    kv_ = {.arena = memory_.as<std::byte>(), .blocks = 40, .layout = layout};
    whole_.resize(20);
    std::iota(whole_.begin(), whole_.end(), 0u);
    kept_.resize(20);
    std::iota(kept_.begin(), kept_.end(), 20u);
  }

  std::vector<float> Step(const SequenceStep& sequence,
                          std::function<void(int32_t, View<const float, 2>)> on_queries = {}) {
    std::vector<float> logits(kConfig.vocab);
    const absl::Status status = runner_.Step({.sequences = {&sequence, 1},
                                              .kv = kv_,
                                              .logits = {logits.data(), {1, kConfig.vocab}},
                                              .on_queries = std::move(on_queries)});
    EXPECT_TRUE(status.ok()) << Message(status);
    return logits;
  }

  SequenceStep PartOf(size_t first, size_t last) const {
    return {.tokens = std::span(tokens_).subspan(first, last - first),
            .position = static_cast<int32_t>(first),
            .blocks = whole_,
            .wants_logits = true};
  }
  SequenceStep Evicted(size_t first, size_t last) const {
    SequenceStep step = PartOf(first, last);
    step.blocks = kept_;
    step.evicted = kEvicted;
    return step;
  }

  // Computes the prompt, and evicts each layer as soon as its keys are there.
  std::vector<float> ComputePrompt() {
    const size_t cut = kPrompt - kObserved;
    Step(PartOf(0, cut));
    return Step(PartOf(cut, kPrompt), [&](int32_t layer, View<const float, 2> queries) {
      EvictLayer(*runner_.eviction_attention()->evictor,
                 {.keys = Keys(layer, queries), .rule = kRule, .to = kept_});
      NoteKept(layer, queries);
    });
  }

  KeyScoresArgs Keys(int32_t layer, View<const float, 2> queries) const {
    const EvictionAttention attention = *runner_.eviction_attention();
    return {.scoring = KeyScoring::kAttention,
            .kv = kv_,
            .layer = layer,
            .blocks = whole_,
            .tokens = kPrompt,
            .queries = queries,
            .heads = attention.heads,
            .scale = attention.scale,
            .cap = attention.cap};
  }

  void NoteKept(int32_t layer, View<const float, 2> queries) {
    std::vector<float> scores(kConfig.kv_heads * kPrompt);
    KeyScoresArgs keys = Keys(layer, queries);
    keys.scores = {scores.data(), {kConfig.kv_heads, kPrompt}};
    ScoreKeys({}, keys);
    for (int64_t head = 0; head < kConfig.kv_heads; ++head) {
      for (const uint32_t slot : ChooseSlots({keys.scores.row(head), kPrompt}, kRule)) {
        stays_.emplace(layer, head, slot);
      }
    }
  }

  double LargestError(std::span<const float> logits, size_t tokens) const {
    const ReferenceEviction eviction{
        .at = kPrompt, .kept = [&](int32_t layer, int64_t head, size_t position) {
          return stays_.contains({layer, head, static_cast<uint32_t>(position)});
        }};
    const std::vector<double> expected =
        ReferenceLogits(weights_, std::span(tokens_).first(tokens), &eviction);
    double error = 0;
    for (size_t i = 0; i < logits.size(); ++i) {
      error = std::max(error, std::abs(logits[i] - expected[i]));
    }
    return error;
  }

  ScopedIsa isa_{GetParam()};
  const Weights weights_ = RandomWeights(kConfig, 3, 0.2f);
  TransformerRunner runner_{weights_, {}, 512};
  const std::vector<uint32_t> tokens_ = Tokens();
  Buffer memory_;
  PagedKv kv_;
  std::vector<uint32_t> whole_, kept_;
  std::set<std::tuple<int32_t, int64_t, uint32_t>> stays_;
};

TEST_P(EvictedAttentionTest, LaterTokensSeeWhatWasKept) {
  const double tolerance = GetParam() == Isa::kAvx512Bf16 ? 0.25 : 2e-3;
  const std::vector<float> prompt = ComputePrompt();
  EXPECT_LT(LargestError(prompt, kPrompt), tolerance) << "the prompt itself saw all";
  ASSERT_EQ(stays_.size(), 3u * 2 * kRule.keep);
  std::vector<float> last;
  for (size_t i = kPrompt; i < kPrompt + kMore; ++i) {
    last = Step(Evicted(i, i + 1));
    EXPECT_LT(LargestError(last, i + 1), tolerance) << "token " << i;
  }
  stays_.clear();
  EXPECT_GT(LargestError(last, kPrompt + kMore), 4 * tolerance) << "nothing kept is another answer";
}

TEST_P(EvictedAttentionTest, ChunksBehindAnEvictionChangeNoBit) {
  ComputePrompt();
  std::vector<float> one_by_one;
  for (size_t i = kPrompt; i < kPrompt + kMore; ++i) one_by_one = Step(Evicted(i, i + 1));
  EXPECT_EQ(Step(Evicted(kPrompt, kPrompt + kMore)), one_by_one);
}

INSTANTIATE_TEST_SUITE_P(Isas, EvictedAttentionTest, ::testing::ValuesIn(SupportedIsas()),
                         [](const auto& test) { return std::string(IsaName(test.param)); });

TEST(EvictedAttentionRefusals, SayWhatIsWrong) {
  const Weights weights = RandomWeights(kConfig, 3, 0.2f);
  ModelConfig windows = kConfig;
  windows.sliding_window = {0, 8, 0};
  const Weights windowed = RandomWeights(windows, 3, 0.2f);
  ModelConfig sinks = kConfig;
  sinks.attention_sinks = true;
  const Weights sunk = RandomWeights(sinks, 3, 0.2f);
  TransformerRunner runner(weights, {}, 16), with_windows(windowed, {}, 16);
  EXPECT_FALSE(TransformerRunner(sunk, {}, 16).eviction_attention().has_value());
  EXPECT_TRUE(runner.eviction_attention().has_value());
  EXPECT_FALSE(with_windows.eviction_attention().has_value()) << "slots are not positions";
  const uint32_t token = 1, block = 0;
  const Buffer memory(runner.kv_layout().BlockStride());
  const auto step = [&](TransformerRunner& on, int32_t evicted) {
    const SequenceStep sequence{
        .tokens = {&token, 1}, .position = 9, .blocks = {&block, 1}, .evicted = evicted};
    return Message(
        on.Step({.sequences = {&sequence, 1},
                 .kv = {.arena = memory.as<std::byte>(), .blocks = 1, .layout = on.kv_layout()}}));
  };
  EXPECT_THAT(step(runner, 10), HasSubstr("has 10 evicted positions, it may have 0 to 9"));
  EXPECT_THAT(step(runner, -1), HasSubstr("has -1 evicted positions"));
  EXPECT_THAT(step(with_windows, 3), HasSubstr("has 3 evicted positions, it may have 0 to 0"));
  EXPECT_EQ(step(runner, 3), "");
}

}  // namespace
}  // namespace penstock
