// The forward pass over tokens whose KV is re-used: documents are computed behind a prefix each on
// their own, moved to where a prompt has them, and partly computed again.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>
#include <random>

#include "kernels/cpu/isa.h"
#include "kernels/kv_rows.h"
#include "model/forward/transformer_runner.h"

namespace penstock {
namespace {

using ::testing::HasSubstr;

constexpr int32_t kPage = 8, kPrefix = 16, kDocument = 40, kQuestion = 5;
constexpr int32_t kTokens = kPrefix + 2 * kDocument + kQuestion;
// The second document in the prompt, whose KV was computed behind the prefix alone.
constexpr int32_t kBegin = kPrefix + kDocument, kEnd = kBegin + kDocument;

const ModelConfig kConfig{.layers = 5,
                          .hidden = 48,
                          .intermediate = 64,
                          .heads = 4,
                          .kv_heads = 2,
                          .head_dim = 16,
                          .vocab = 101,
                          .max_position = 400};

class BlendedTest : public ::testing::TestWithParam<Isa> {
 protected:
  explicit BlendedTest(const ModelConfig& config = kConfig)
      : weights_(RandomWeights(config, 3, 0.2f)) {
    std::mt19937_64 random(5);
    for (uint32_t& token : tokens_) token = static_cast<uint32_t>(random() % kConfig.vocab);
    KvLayout layout = runner_.kv_layout();
    layout.block_tokens = kPage;
    memory_ = Buffer(80 * layout.BlockStride());
    kv_ = {.arena = memory_.as<std::byte>(), .blocks = 80, .layout = layout};
  }

  std::vector<uint32_t> Table(uint32_t first) const {
    std::vector<uint32_t> table(20);
    std::iota(table.begin(), table.end(), first);
    return table;
  }

  std::vector<float> Step(std::vector<SequenceStep> sequences) {
    std::vector<float> logits(kConfig.vocab);
    const bool wants = std::ranges::any_of(sequences, &SequenceStep::wants_logits);
    const absl::Status status =
        runner_.Step({.sequences = sequences,
                      .kv = kv_,
                      .logits = {logits.data(), {wants ? 1 : 0, kConfig.vocab}}});
    EXPECT_TRUE(status.ok()) << Message(status);
    return logits;
  }

  SequenceStep Part(std::span<const uint32_t> table, int32_t begin, int32_t end) const {
    return {.tokens = std::span(tokens_).subspan(begin, end - begin),
            .position = begin,
            .blocks = table,
            .wants_logits = end == kTokens};
  }

  // Computes the whole prompt exactly, and returns its last logits.
  std::vector<float> Exact(std::span<const uint32_t> table) {
    return Step({Part(table, 0, kTokens)});
  }

  // Prefix and second document alone, at their own positions.
  void ComputeDocument(std::span<const uint32_t> table) {
    std::vector<uint32_t> alone(tokens_.begin(), tokens_.begin() + kPrefix);
    alone.insert(alone.end(), tokens_.begin() + kBegin, tokens_.begin() + kEnd);
    Step({{.tokens = alone, .position = 0, .blocks = table}});
  }

  // Blends the prompt, of which the second document is re-used, and returns its last logits.
  std::vector<float> Blend(std::span<const uint32_t> table, BlendedTokens& blended) {
    const std::vector<uint32_t> document = Table(60);
    ComputeDocument(document);
    MoveTokens(*runner_.key_rotations(), {.kv = kv_,
                                          .from = document,
                                          .to = table,
                                          .from_position = kPrefix,
                                          .to_position = kBegin,
                                          .tokens = kDocument});
    Step({Part(table, 0, kBegin)});
    SequenceStep part = Part(table, kBegin, kEnd);
    part.blended = &blended;
    // The question beside the document: within a layer all keys are written before any are read.
    return Step({Part(table, kEnd, kTokens), part});
  }

  static double Distance(std::span<const float> a, std::span<const float> b) {
    double sum = 0;
    for (size_t i = 0; i < a.size(); ++i) sum += (a[i] - b[i]) * (a[i] - b[i]);
    return std::sqrt(sum);
  }

  std::vector<float> Row(uint32_t block, int32_t layer, KvPlane plane, int32_t slot) {
    std::vector<Bf16> row(static_cast<size_t>(kConfig.head_dim));
    cpu::LoadKvRows(kv_,
                    {.block = block, .layer = layer, .kv_head = 1, .plane = plane, .slot = slot}, 1,
                    row.data());
    std::vector<float> values;
    for (const Bf16 value : row) values.push_back(ToFloat(value));
    return values;
  }

  ScopedIsa isa_{GetParam()};
  const Weights weights_;
  TransformerRunner runner_{weights_, {}, 512};
  std::vector<uint32_t> tokens_ = std::vector<uint32_t>(kTokens);
  Buffer memory_;
  PagedKv kv_;
};

// Layer 0 depends on no other token: there a moved token has the KV of its new position.
TEST_P(BlendedTest, MovedKeysAreThoseOfTheirPositions) {
  const std::vector<uint32_t> exact = Table(0), document = Table(20), moved = Table(40);
  Exact(exact);
  ComputeDocument(document);
  MoveTokens(*runner_.key_rotations(), {.kv = kv_,
                                        .from = document,
                                        .to = moved,
                                        .from_position = kPrefix,
                                        .to_position = kBegin,
                                        .tokens = kDocument});
  double largest = 0;
  for (int32_t position = kBegin; position < kEnd; ++position) {
    const auto page = static_cast<size_t>(position / kPage);
    const int32_t slot = position % kPage;
    EXPECT_EQ(Row(moved[page], 0, KvPlane::kValues, slot),
              Row(exact[page], 0, KvPlane::kValues, slot));
    const std::vector<float> keys = Row(moved[page], 0, KvPlane::kKeys, slot);
    const std::vector<float> right = Row(exact[page], 0, KvPlane::kKeys, slot);
    const auto old_page = static_cast<size_t>((position - kDocument) / kPage);
    const std::vector<float> unturned =
        Row(document[old_page], 0, KvPlane::kKeys, (position - kDocument) % kPage);
    for (size_t i = 0; i < keys.size(); ++i) {
      const float scale = std::max(1.0f, std::abs(right[i]));
      EXPECT_NEAR(keys[i], right[i], 0.02 * scale);
      largest = std::max(largest, double{std::abs(unturned[i] - right[i])});
    }
  }
  EXPECT_GT(largest, 0.2) << "without the rotation keys are others";
}

TEST_P(BlendedTest, AllTokensComputedAreTheExactPrefill) {
  const std::vector<uint32_t> exact = Table(0), blended_table = Table(40);
  const std::vector<float> logits = Exact(exact);
  BlendedTokens blended{.recompute = kDocument, .deviation_max = 10};
  EXPECT_EQ(Blend(blended_table, blended), logits);
  EXPECT_EQ(blended.recomputed, kDocument);
  EXPECT_GT(blended.deviation, 0.01);
}

TEST_P(BlendedTest, AboveTheBoundAllTokensAreComputed) {
  const std::vector<uint32_t> exact = Table(0), blended_table = Table(40);
  const std::vector<float> logits = Exact(exact);
  BlendedTokens blended{.recompute = 1, .deviation_max = 0.001f};
  EXPECT_EQ(Blend(blended_table, blended), logits);
  EXPECT_EQ(blended.recomputed, kDocument);
}

TEST_P(BlendedTest, MoreTokensComputedAreNearerToTheExactPrefill) {
  const std::vector<uint32_t> exact = Table(0), blended_table = Table(40);
  const std::vector<float> logits = Exact(exact);
  std::vector<double> distances;
  for (const int32_t recompute : {1, 20, 36}) {
    BlendedTokens blended{.recompute = recompute, .deviation_max = 10};
    distances.push_back(Distance(Blend(blended_table, blended), logits));
    EXPECT_EQ(blended.recomputed, recompute);
  }
  EXPECT_GT(distances[0], 0);
  EXPECT_LT(distances[2], 0.5 * distances[0]);
  EXPECT_LT(distances[1], distances[0]);
}

// The tokens that are not computed keep the KV that the pages had, behind the second layer.
TEST_P(BlendedTest, OtherTokensKeepTheirKv) {
  const std::vector<uint32_t> table = Table(40);
  BlendedTokens blended{.recompute = 6, .deviation_max = 10};
  Blend(table, blended);
  const std::vector<uint32_t> document = Table(60);
  int32_t kept = 0;
  for (int32_t position = kBegin; position < kEnd; ++position) {
    const int32_t from = position - kDocument;
    kept +=
        Row(table[static_cast<size_t>(position / kPage)], 4, KvPlane::kValues, position % kPage) ==
        Row(document[static_cast<size_t>(from / kPage)], 4, KvPlane::kValues, from % kPage);
  }
  EXPECT_EQ(kept, kDocument - 6);
}

// Another sequence in the step, and other parts in the same one, change nothing.
TEST_P(BlendedTest, TheBatchChangesNoBit) {
  const std::vector<uint32_t> table = Table(40), other = Table(0);
  BlendedTokens blended{.recompute = 6, .deviation_max = 10};
  const std::vector<float> logits = Blend(table, blended);
  Step({Part(other, 0, 7)});
  const std::vector<uint32_t> document = Table(60);
  MoveTokens(*runner_.key_rotations(), {.kv = kv_,
                                        .from = document,
                                        .to = table,
                                        .from_position = kPrefix,
                                        .to_position = kBegin,
                                        .tokens = kDocument});
  BlendedTokens again{.recompute = 6, .deviation_max = 10};
  SequenceStep part = Part(table, kBegin, kEnd);
  part.blended = &again;
  Step({Part(other, 7, 30), part});
  EXPECT_EQ(Step({Part(table, kEnd, kTokens)}), logits);
  EXPECT_EQ(again.deviation, blended.deviation);
  // And the other sequence is as it is alone.
  const std::vector<float> beside = Step({Part(other, 30, kTokens)});
  EXPECT_EQ(beside, Exact(Table(0)));
}

TEST_P(BlendedTest, RefusesWhatItCannotDo) {
  const std::vector<uint32_t> table = Table(40);
  BlendedTokens blended{.recompute = 6, .deviation_max = 10};
  SequenceStep part = Part(table, kBegin, kEnd);
  part.blended = &blended;
  const auto message = [&](std::vector<SequenceStep> sequences) {
    std::vector<float> logits(kConfig.vocab);
    return Message(runner_.Step(
        {.sequences = sequences, .kv = kv_, .logits = {logits.data(), {1, kConfig.vocab}}}));
  };
  EXPECT_THAT(message({part, Part(table, kEnd, kTokens)}), HasSubstr("blended ones are last"));
  blended.recompute = 0;
  EXPECT_THAT(message({part}), HasSubstr("recomputes 0 tokens"));
  blended.recompute = 6;
  part.wants_logits = true;
  EXPECT_THAT(message({part}), HasSubstr("has an output"));
}

INSTANTIATE_TEST_SUITE_P(Isas, BlendedTest, ::testing::ValuesIn(SupportedIsas()),
                         [](const auto& test) { return std::string(IsaName(test.param)); });

// Models whose keys' positions cannot be corrected do not blend.
TEST(BlendingModelsTest, AreThoseWithoutWindows) {
  ModelConfig config = kConfig;
  config.layers = 2;
  const Weights shallow = RandomWeights(config, 3, 0.2f);
  EXPECT_FALSE(TransformerRunner(shallow, {}, 8).key_rotations().has_value());
  config = kConfig;
  config.sliding_window = {16, 16, 16, 16, 16};
  const Weights windowed = RandomWeights(config, 3, 0.2f);
  EXPECT_FALSE(TransformerRunner(windowed, {}, 8).key_rotations().has_value());
}

}  // namespace
}  // namespace penstock
