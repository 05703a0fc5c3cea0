// The forward pass on a GPU over tokens whose KV is re-used, as tests/model/forward/blended_test.cc
// has it on a CPU.

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>
#include <random>

#include "kernels/cuda/cuda_pages.h"
#include "model/check/blend_check.h"
#include "model/cuda/cuda_runner.h"
#include "model/forward/transformer_runner.h"
#include "tests/cuda/runner/runner_rig.h"

namespace penstock {
namespace {

constexpr int32_t kPage = 16, kPrefix = 16, kDocument = 48, kQuestion = 5, kBlocks = 60;
constexpr int32_t kTokens = kPrefix + 2 * kDocument + kQuestion;
// The second document in the prompt, whose KV was computed behind the prefix alone.
constexpr int32_t kBegin = kPrefix + kDocument, kEnd = kBegin + kDocument;
constexpr float kNoBound = std::numeric_limits<float>::infinity();

ModelConfig Config() {
  ModelConfig config = TinyConfig();
  config.layers = 5;
  return config;
}

std::vector<uint32_t> Table(uint32_t first) {
  std::vector<uint32_t> table(10);
  std::iota(table.begin(), table.end(), first);
  return table;
}

// A runner with an arena in memory that it may write to.
class Blender {
 public:
  explicit Blender(ModelRunner& runner) : runner_(runner) {
    memory_ = Buffer(kBlocks * runner.kv_layout().BlockStride());
    kv_ = {.arena = memory_.as<std::byte>(), .blocks = kBlocks, .layout = runner.kv_layout()};
    std::mt19937_64 random(5);
    for (uint32_t& token : tokens_) token = static_cast<uint32_t>(random() % 101);
  }

  std::vector<float> Step(const std::vector<SequenceStep>& sequences) {
    const auto wanted =
        std::ranges::count_if(sequences, [](const auto& step) { return step.wants_logits; });
    std::vector<float> logits(static_cast<size_t>(wanted * runner_.vocab()));
    reports_.clear();
    const absl::Status status = runner_.Step({.sequences = sequences,
                                              .kv = kv_,
                                              .logits = {logits.data(), {wanted, runner_.vocab()}},
                                              .on_layers_done =
                                                  [&](int32_t first, int32_t end) {
                                                    reports_.push_back({first, end});
                                                  },
                                              .layers_per_group = 2});
    EXPECT_EQ(Message(status), "");
    return logits;
  }
  SequenceStep Part(std::span<const uint32_t> table, int32_t begin, int32_t end) const {
    return {.tokens = std::span(tokens_).subspan(static_cast<size_t>(begin),
                                                 static_cast<size_t>(end - begin)),
            .position = begin,
            .blocks = table,
            .prompt = true,
            .wants_logits = end == kTokens};
  }
  std::vector<float> Exact() { return Step({Part(exact_, 0, kTokens)}); }

  // The prompt in its own blocks, with its second document as it was computed alone.
  void Reuse() {
    std::vector<uint32_t> alone(tokens_.begin(), tokens_.begin() + kPrefix);
    alone.insert(alone.end(), tokens_.begin() + kBegin, tokens_.begin() + kEnd);
    Step({{.tokens = alone, .position = 0, .blocks = document_, .prompt = true}});
    MoveTokens(*runner_.key_rotations(), {.kv = kv_,
                                          .from = document_,
                                          .to = blended_,
                                          .from_position = kPrefix,
                                          .to_position = kBegin,
                                          .tokens = kDocument});
    Step({Part(blended_, 0, kBegin)});
  }
  // Blends the document in one step, in pieces of `sizes` tokens, with the question beside it.
  std::vector<float> Blend(int32_t percent, float deviation_max, const std::vector<int32_t>& sizes,
                           std::vector<BlendedTokens>& blended) {
    Reuse();
    blended.assign(sizes.size(), {});
    std::vector<SequenceStep> parts = {Part(blended_, kEnd, kTokens)};
    int32_t begin = kBegin;
    for (size_t i = 0; i < sizes.size(); ++i) {
      blended[i] = {.recompute = sizes[i] * percent / 100, .deviation_max = deviation_max};
      parts.push_back(Part(blended_, begin, begin + sizes[i]));
      parts.back().blended = &blended[i];
      begin += sizes[i];
    }
    EXPECT_EQ(begin, kEnd);
    return Step(parts);
  }
  std::span<const std::byte> Block(uint32_t block) const {
    const size_t bytes = kv_.layout.PayloadBytes();
    return {memory_.as<std::byte>() + block * kv_.layout.BlockStride(), bytes};
  }
  const std::vector<std::pair<int32_t, int32_t>>& reports() const { return reports_; }

  const std::vector<uint32_t> exact_ = Table(0), document_ = Table(20), blended_ = Table(40);

 private:
  ModelRunner& runner_;
  std::vector<uint32_t> tokens_ = std::vector<uint32_t>(kTokens);
  Buffer memory_;
  PagedKv kv_;
  std::vector<std::pair<int32_t, int32_t>> reports_;
};

double Distance(std::span<const float> a, std::span<const float> b) {
  double sum = 0;
  for (size_t i = 0; i < a.size(); ++i) sum += (a[i] - b[i]) * (a[i] - b[i]);
  return std::sqrt(sum);
}

class BlendedRunnerTest : public ::testing::Test {
 protected:
  BlendedRunnerTest() : weights_(RandomWeights(Config(), 3, 0.2f)) {}

  std::unique_ptr<CudaRunner> Create(CudaRunner::Options options) {
    options.blends = true;
    return *CudaRunner::Create(weights_, *device_, options);
  }

  std::unique_ptr<cuda::CudaDevice> device_ = *cuda::CudaDevice::Open(0);
  const Weights weights_;
  std::unique_ptr<CudaRunner> runner_ = Create({});
};

TEST_F(BlendedRunnerTest, AllTokensComputedIsAPrefill) {
  Blender blender(*runner_);
  const std::vector<float> exact = blender.Exact();
  std::vector<BlendedTokens> blended;
  EXPECT_EQ(blender.Blend(100, kNoBound, {kDocument}, blended), exact);
  EXPECT_EQ(blended[0].recomputed, kDocument);
  for (size_t i = 0; i < kTokens / kPage; ++i) {
    EXPECT_TRUE(
        std::ranges::equal(blender.Block(blender.blended_[i]), blender.Block(blender.exact_[i])))
        << i;
  }
  // The five layers are reported two at a time.
  const std::vector<std::pair<int32_t, int32_t>> reports = {{0, 2}, {2, 4}, {4, 5}};
  EXPECT_EQ(blender.reports(), reports);
}

TEST_F(BlendedRunnerTest, AboveTheBoundAllTokensAreComputed) {
  Blender blender(*runner_);
  const std::vector<float> exact = blender.Exact();
  std::vector<BlendedTokens> blended;
  EXPECT_EQ(blender.Blend(10, 1e-6f, {20, 28}, blended), exact);
  EXPECT_EQ(blended[0].recomputed, 20);
  EXPECT_EQ(blended[1].recomputed, 28);
  EXPECT_GT(blended[1].deviation, 1e-6f);
}

// The CPU's deviations, and nearly its answer. Its rows and rounding are its own, so single tokens
// near the border may be chosen by one alone.
TEST_F(BlendedRunnerTest, BlendsAsTheCpu) {
  Blender here(*runner_);
  TransformerRunner cpu(weights_, {}, 512);
  Blender there(cpu);
  const std::vector<float> exact = here.Exact();
  std::vector<BlendedTokens> got, want;
  const std::vector<float> moved = here.Blend(0 + 3, kNoBound, {kDocument}, got);
  EXPECT_EQ(got[0].recomputed, 1);
  const std::vector<float> blended = here.Blend(50, kNoBound, {kDocument}, got);
  EXPECT_EQ(got[0].recomputed, kDocument / 2);
  EXPECT_LT(Distance(blended, exact), Distance(moved, exact));
  const std::vector<float> of_cpu = there.Blend(50, kNoBound, {kDocument}, want);
  EXPECT_NEAR(got[0].deviation, want[0].deviation, 0.02f * want[0].deviation);
  EXPECT_LT(Distance(blended, of_cpu), Distance(blended, exact));
}

// Beside another sequence, and with the question in a step of its own.
TEST_F(BlendedRunnerTest, NothingElseInAStepChangesABit) {
  Blender blender(*runner_);
  std::vector<BlendedTokens> first, second;
  const std::vector<float> one = blender.Blend(30, kNoBound, {24, 24}, first);
  blender.Reuse();
  std::vector<SequenceStep> parts = {blender.Part(blender.exact_, 0, kTokens)};
  second.assign(2, {.recompute = 24 * 30 / 100, .deviation_max = kNoBound});
  for (const int32_t i : {0, 1}) {
    parts.push_back(blender.Part(blender.blended_, kBegin + 24 * i, kBegin + 24 * (i + 1)));
    parts.back().blended = &second[static_cast<size_t>(i)];
  }
  blender.Step(parts);
  EXPECT_EQ(blender.Step({blender.Part(blender.blended_, kEnd, kTokens)}), one);
  for (const size_t i : {0u, 1u}) EXPECT_EQ(first[i].deviation, second[i].deviation);
}

// The check when a worker starts (scripts/cuda-mutants breaks blends for it).
TEST_F(BlendedRunnerTest, TheCheckAtStartPasses) {
  ModelConfig large = Config();
  large.heads = large.kv_heads = 32;  // a row is more than one piece of work for a thread
  const Weights small = SmallWeightsOf(SmallBlendedModelLike(large));
  const auto gpu = *CudaRunner::Create(small, *device_, {.blends = true});
  TransformerRunner cpu(small, {}, 512);
  const KvLayout layout = cpu.kv_layout();
  const int64_t blocks = BlendCheckBlocks(layout);
  const Buffer here(static_cast<size_t>(blocks) * layout.BlockStride());
  const auto pages = *cuda::CudaPages::Create(*device_, layout, blocks);
  EXPECT_EQ(
      Message(CheckBlends({*gpu, pages->view()}, {cpu, {here.as<std::byte>(), blocks, layout}})),
      "");
}

TEST_F(BlendedRunnerTest, RefusesWhatItDoesNotBlend) {
  EXPECT_TRUE(runner_->key_rotations().has_value());
  EXPECT_FALSE(Create({.evicts = true})->key_rotations().has_value());
  const auto plain = *CudaRunner::Create(weights_, *device_, {});
  EXPECT_FALSE(plain->key_rotations().has_value());
  Blender blender(*runner_);
  Rig rig(*plain, 1);
  BlendedTokens blended{.recompute = 1};
  SequenceStep part = blender.Part(blender.exact_, 0, kPrefix);
  part.blended = &blended;
  const std::vector<SequenceStep> steps = {part};
  const char* const kRefusal = "sequence 0 is blended, and this runner computes all tokens";
  EXPECT_EQ(Message(plain->Step({.sequences = steps, .kv = rig.kv})), kRefusal);
  Rig coded(*runner_, 1, KvDtype::kI8);
  EXPECT_EQ(Message(runner_->Step({.sequences = steps, .kv = coded.kv})), kRefusal);
}

}  // namespace
}  // namespace penstock
