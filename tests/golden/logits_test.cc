#include <gtest/gtest.h>

#include <algorithm>
#include <memory>
#include <string>
#include <vector>

#include "kernels/cpu/isa.h"
#include "kernels/cpu/thread_pool.h"
#include "lab/fake/temp_folder.h"
#include "model/forward/transformer_runner.h"
#include "model/load/load_model.h"
#include "tests/golden/golden_logits.h"

// The forward pass against what transformers computed in float32 (make_logits.py).
namespace penstock {
namespace {

// Logits after each token that ends a chunk, [vocab] each; empty for the others.
std::vector<std::vector<float>> RunChunks(TransformerRunner& runner,
                                          const std::vector<uint32_t>& tokens,
                                          const std::vector<size_t>& chunks, uint32_t seed) {
  const Pages pages(runner.kv_layout(), static_cast<int64_t>(tokens.size()), seed);
  std::vector<std::vector<float>> logits(tokens.size());
  size_t done = 0;
  for (const size_t chunk : chunks) {
    const SequenceStep step{.tokens = std::span(tokens).subspan(done, chunk),
                            .position = static_cast<int32_t>(done),
                            .blocks = pages.table(),
                            .wants_logits = true};
    done += chunk;
    std::vector<float>& row = logits[done - 1];
    row.resize(static_cast<size_t>(runner.vocab()));
    StepArgs args{
        .sequences = {&step, 1}, .kv = pages.kv(), .logits = {row.data(), {1, runner.vocab()}}};
    const absl::Status status = runner.Step(args);
    EXPECT_TRUE(status.ok()) << status;
  }
  EXPECT_EQ(done, tokens.size());
  return logits;
}

// Activations of 16 bits: a last bit of f32 turns the rounding of one in some hundreds by a step of
// 1 / 32639, and such steps turn the rounding of a key or value to bf16 more often.
constexpr Difference kInt16Limit = {.max = 0.02, .rms = 1e-3};
// What 16 bits instead of 24 change.
constexpr Difference kInt16Loss = {.max = 0.05, .rms = 2e-3};

class GoldenLogitsTest : public testing::TestWithParam<std::string> {
 protected:
  void SetUp() override {
    const std::string directory = GoldenDirectory() + "/" + GetParam();
    auto model = LoadModel(ModelIn(directory));
    ASSERT_TRUE(model.ok()) << model.status();
    model_ = std::make_unique<LoadedModel>(*std::move(model));
    expected_ = ReadExpected(directory);
    ASSERT_EQ(expected_.logits.size(),
              expected_.tokens.size() * static_cast<size_t>(model_->weights.config.vocab));
    ASSERT_EQ(expected_.logits_bf16_kv.size(), expected_.logits.size());
    ASSERT_EQ(expected_.logits_int16.size(), HasIntegers() ? expected_.logits.size() : 0);
  }

  static void ExpectWithin(const Difference& found, const Difference& limit) {
    EXPECT_LE(found.max, limit.max) << IsaName(ActiveIsa());
    EXPECT_LE(found.rms, limit.rms) << IsaName(ActiveIsa());
  }

  // True if activations are rounded to integers; with FP8 weights they are not.
  bool HasIntegers() const { return model_->weights.FormName().ends_with("activations int16"); }

  // Rounding that moves two experts' scores past each other moves the token's logits much further
  // than rounding alone, and further yet if the experts' outputs are scaled.
  double RoundingFactor() const {
    const ExpertConfig& experts = model_->weights.config.experts;
    return experts.count > 0 ? 3 * std::max(1.0f, experts.scale) : 1;
  }

  std::vector<std::vector<float>> OneByOne() {
    TransformerRunner runner(model_->weights, {}, 64);
    return RunChunks(runner, expected_.tokens, std::vector<size_t>(expected_.tokens.size(), 1), 1);
  }

  // Does nothing for matrices that are not blocks.
  void ExpectRow(const std::string& name, const WeightMatrix& matrix, int64_t row) const {
    const auto want = expected_.rows.find(name);
    if (want == expected_.rows.end()) return;
    std::vector<float> found(static_cast<size_t>(matrix.inputs()));
    matrix.GetRow(row, found.data());
    found.resize(want->second.size());
    EXPECT_EQ(found, want->second) << name;
  }

  std::unique_ptr<LoadedModel> model_;
  Expected expected_;
};

TEST_P(GoldenLogitsTest, EveryPositionOnEveryInstructionSet) {
  for (const Isa isa : SupportedIsas()) {
    const ScopedIsa scoped(isa);
    const bool bf16 = isa == Isa::kAvx512Bf16, integers = HasIntegers();
    const auto logits = OneByOne();
    if (bf16) {
      ExpectWithin(Compare(logits, expected_.logits), {.max = kBf16Limit.max * RoundingFactor(),
                                                       .rms = kBf16Limit.rms * RoundingFactor()});
    } else if (integers) {
      ExpectWithin(Compare(logits, expected_.logits_int16), kInt16Limit);
      ExpectWithin(Compare(logits, expected_.logits_bf16_kv), kInt16Loss);
    } else {
      ExpectWithin(Compare(logits, expected_.logits_bf16_kv), kF32Limit);
    }
  }
}

// The limits mean something: each of these mistakes is far outside of them.
TEST_P(GoldenLogitsTest, SmallMistakesShow) {
  const ScopedIsa scoped(Isa::kPortable);
  const ModelConfig right = model_->weights.config;
  const auto error_of = [&](const auto& mistake) {
    mistake(model_->weights.config);
    const Difference found = Compare(OneByOne(), expected_.logits_bf16_kv);
    model_->weights.config = right;
    return found.rms;
  };
  if (right.names.positions.empty()) {
    EXPECT_GT(error_of([](ModelConfig& c) { c.rope.theta *= 1.1f; }), 10 * kF32Limit.rms);
  }
  EXPECT_GT(error_of([](ModelConfig& c) { c.norm_epsilon = 1e-3f; }), kF32Limit.rms);
  // A model of 8,192 positions turns slow pairs too little within the first 40.
  if (right.rope.scaling != RopeScaling::kNone && right.rope.original_max_position < 1000 &&
      right.rope.scaling != RopeScaling::kLongRope) {
    EXPECT_GT(error_of([](ModelConfig& c) { c.rope.factor *= 1.1f; }), 10 * kF32Limit.rms);
  }
  if (right.rope.scaling == RopeScaling::kYarn || right.rope.scaling == RopeScaling::kLongRope) {
    EXPECT_GT(error_of([](ModelConfig& c) { c.rope.attention_factor *= 1.01f; }),
              10 * kF32Limit.rms);
  }
  if (right.rope.scaling == RopeScaling::kLongRope) {
    EXPECT_GT(error_of([](ModelConfig& c) { c.rope.divisors[1] *= 1.1f; }), 10 * kF32Limit.rms);
  }
  if (right.sliding_window.back() != 0) {
    EXPECT_GT(error_of([](ModelConfig& c) { c.sliding_window.back() += 1; }), 10 * kF32Limit.rms);
  }
}

// The same for the parts that Llama does not have.
TEST_P(GoldenLogitsTest, MistakesInAFamilysOwnPartsShow) {
  const ScopedIsa scoped(Isa::kPortable);
  const ModelConfig right = model_->weights.config;
  const auto expect_shown = [&](bool has, const auto& mistake) {
    if (!has) return;
    mistake(model_->weights.config);
    EXPECT_GT(Compare(OneByOne(), expected_.logits_bf16_kv).rms, 10 * kF32Limit.rms);
    model_->weights.config = right;
  };
  using Config = ModelConfig&;
  expect_shown(right.attention_scale != 0, [](Config c) { c.attention_scale *= 1.05f; });
  expect_shown(right.attention_cap != 0, [](Config c) { c.attention_cap *= 1.1f; });
  expect_shown(right.logit_cap != 0, [](Config c) { c.logit_cap *= 1.01f; });
  expect_shown(right.embedding_multiplier != 1, [](Config c) { c.embedding_multiplier *= 1.02f; });
  expect_shown(right.residual_multiplier != 1, [](Config c) { c.residual_multiplier *= 1.02f; });
  expect_shown(right.logit_divisor != 1, [](Config c) { c.logit_divisor *= 1.01f; });
  expect_shown(right.activation != Activation::kSilu && right.names.HasGate(),
               [](Config c) { c.activation = Activation::kSilu; });
  expect_shown(right.attention_sinks, [](Config c) { c.attention_sinks = false; });
  expect_shown(right.experts.gate_limit != 0, [](Config c) { c.experts.gate_limit *= 1.1f; });
  expect_shown(!right.rope.truncate, [](Config c) { c.rope.truncate = true; });
  expect_shown(right.sliding_window.front() != 0, [](Config c) { ++c.sliding_window.front(); });
  expect_shown(right.parallel_residual, [](Config c) { c.parallel_residual = false; });
  expect_shown(right.layer_norm, [](Config c) { c.layer_norm = false; });
  for (size_t i = 0; i < right.layer_rope.size(); ++i) {
    expect_shown(true, [i](Config c) {
      const bool main = c.layer_rope[i] == LayerRope::kMain;
      c.layer_rope[i] = main ? LayerRope::kNone : LayerRope::kMain;
    });
  }
  expect_shown(right.experts.count != 0,
               [](Config c) { c.experts.normalise = !c.experts.normalise; });
  expect_shown(right.experts.count != 0, [](Config c) { --c.experts.per_token; });
  expect_shown(right.experts.scale != 1, [](Config c) { c.experts.scale *= 1.05f; });
  expect_shown(right.experts.sigmoid, [](Config c) { c.experts.sigmoid = false; });
  expect_shown(right.experts.kept_groups > 1, [](Config c) { --c.experts.kept_groups; });
  expect_shown(right.rope.rotary_dims != 0, [](Config c) {
    c.rope.rotary_dims -= 2;
    if (!c.rope.divisors.empty()) c.rope.divisors.pop_back();
  });
}

// The two forms of GELU are so near each other that the limits do not tell them apart.
TEST_P(GoldenLogitsTest, TheOtherGeluIsFarther) {
  const ScopedIsa scoped(Isa::kPortable);
  ModelConfig& config = model_->weights.config;
  if (config.names.HasGate()) return;
  const std::vector<float>& expected =
      HasIntegers() ? expected_.logits_int16 : expected_.logits_bf16_kv;
  const double right = Compare(OneByOne(), expected).rms;
  const bool exact = config.activation == Activation::kGelu;
  config.activation = exact ? Activation::kGeluTanh : Activation::kGelu;
  EXPECT_GT(Compare(OneByOne(), expected).rms, 2 * right);
}

TEST_P(GoldenLogitsTest, ChunksOfThePromptChangeNoBit) {
  for (const Isa isa : SupportedIsas()) {
    const ScopedIsa scoped(isa);
    ThreadPool threads(2);
    TransformerRunner runner(model_->weights, {.threads = &threads}, 64);
    const auto one_by_one = OneByOne();
    for (uint32_t seed = 1; seed <= 5; seed++) {
      const auto chunked =
          RunChunks(runner, expected_.tokens, RandomChunks(expected_.tokens.size(), seed), seed);
      for (size_t i = 0; i < chunked.size(); i++) {
        if (!chunked[i].empty()) {
          EXPECT_EQ(chunked[i], one_by_one[i]) << "position " << i;
        }
      }
    }
    const auto whole = RunChunks(runner, expected_.tokens, {expected_.tokens.size()}, 9);
    EXPECT_EQ(whole.back(), one_by_one.back());
  }
}

// Matrices rounded when they are loaded, tied ones among them: the logits move by about as much as
// the rounding errors of the weights say, and steps do not depend on chunks either.
TEST_P(GoldenLogitsTest, RoundedWeightsStayNearAndExactInThemselves) {
  if (model_->weights.quantised()) return;  // a checkpoint's codes are not rounded again
  const ScopedIsa scoped(Isa::kPortable);
  double before = 0;
  for (const WeightPolicy policy : {WeightPolicy::kInt8, WeightPolicy::kInt4}) {
    auto rounded = LoadModel(ModelIn(GoldenDirectory() + "/" + GetParam()), {.policy = policy});
    ASSERT_TRUE(rounded.ok()) << rounded.status();
    *model_ = *std::move(rounded);
    const auto one_by_one = OneByOne();
    const double error = Compare(one_by_one, expected_.logits_bf16_kv).rms;
    EXPECT_LE(error, policy == WeightPolicy::kInt8 ? 0.05 * RoundingFactor() : 0.6);
    EXPECT_GT(error, before);
    before = error;
    TransformerRunner runner(model_->weights, {}, 64);
    const auto chunked =
        RunChunks(runner, expected_.tokens, RandomChunks(expected_.tokens.size(), 3), 3);
    for (size_t i = 0; i < chunked.size(); i++) {
      if (!chunked[i].empty()) {
        EXPECT_EQ(chunked[i], one_by_one[i]) << "position " << i;
      }
    }
  }
}

size_t LargestExpert(const Weights& weights) {
  size_t largest = 0;
  for (const LayerWeights& layer : weights.layers) {
    if (!layer.experts.has_value()) continue;
    for (const GatedWeights& expert : layer.experts->experts) {
      largest = std::max(largest, expert.memory_bytes());
    }
  }
  return largest;
}

// Every format of experts, read from a file for every token, and in whole prompts.
TEST_P(GoldenLogitsTest, ExpertsOnADiskChangeNoBit) {
  if (model_->weights.config.experts.count == 0) return;
  const TempFolder folder;
  for (const WeightPolicy policy : {WeightPolicy::kCheckpoint, WeightPolicy::kInt4}) {
    if (policy != WeightPolicy::kCheckpoint && model_->weights.quantised()) continue;
    const std::string model = ModelIn(GoldenDirectory() + "/" + GetParam());
    auto in_memory = LoadModel(model, {.policy = policy});
    ASSERT_TRUE(in_memory.ok()) << in_memory.status();
    const size_t expert = LargestExpert(in_memory->weights);
    const uint64_t fingerprint = in_memory->fingerprint;
    const size_t step_bytes = in_memory->weights.step_bytes();
    *model_ = *std::move(in_memory);
    const auto want = OneByOne();
    for (const size_t slots : {1, 3}) {
      const ExpertCache::Options cache{.directory = folder.path(), .bytes = slots * expert};
      auto on_disk = LoadModel(model, {.policy = policy, .expert_cache = cache});
      ASSERT_TRUE(on_disk.ok()) << on_disk.status();
      EXPECT_EQ(on_disk->fingerprint, fingerprint);
      EXPECT_EQ(on_disk->weights.step_bytes(), step_bytes);
      *model_ = *std::move(on_disk);
      EXPECT_EQ(OneByOne(), want);
      TransformerRunner runner(model_->weights, {}, 64);
      EXPECT_EQ(RunChunks(runner, expected_.tokens, {expected_.tokens.size()}, 9).back(),
                want.back());
      const ExpertCacheStats stats = model_->weights.expert_cache->stats();
      EXPECT_LE(stats.bytes_resident, slots * expert);
      EXPECT_GT(stats.misses, expected_.tokens.size());
    }
  }
}

// One row of each quantised matrix of a GGUF file, bit for bit as ggml's package gives it.
TEST_P(GoldenLogitsTest, BlocksHaveTheWeightsOfGgml) {
  const Weights& weights = model_->weights;
  const int64_t query = int64_t{weights.config.heads} * weights.config.head_dim,
                key = int64_t{weights.config.kv_heads} * weights.config.head_dim;
  constexpr int64_t kRow = 37, kGateUp = kRow / 16 * 32 + kRow % 16;  // of make_gguf.py
  const int64_t up = weights.config.names.HasGate() ? kGateUp + 16 : kRow;
  ExpectRow("output", weights.lm_head, kRow);
  if (weights.embedding_weight) ExpectRow("token_embd", *weights.embedding_weight, kRow);
  for (size_t i = 0; i < weights.layers.size(); ++i) {
    const LayerWeights& layer = weights.layers[i];
    const std::string prefix = fmt::format("blk.{}.", i);
    ExpectRow(prefix + "attn_q", layer.qkv, kRow);
    ExpectRow(prefix + "attn_k", layer.qkv, query + kRow % key);
    ExpectRow(prefix + "attn_v", layer.qkv, query + key + kRow % key);
    ExpectRow(prefix + "attn_qkv", layer.qkv, kRow);
    ExpectRow(prefix + "attn_output", layer.attention_output, kRow);
    ExpectRow(prefix + "ffn_gate", layer.gate_up, kGateUp);
    ExpectRow(prefix + "ffn_up", layer.gate_up, up);
    ExpectRow(prefix + "ffn_down", layer.down, kRow);
  }
}

INSTANTIATE_TEST_SUITE_P(
    Checkpoints, GoldenLogitsTest,
    testing::Values("deepseek_v2", "deepseek_v2_lite", "deepseek_v3", "deepseek_v3_mtp", "glm4_moe",
                    "glm4_moe_mtp", "falcon_11b", "falcon_40b", "falcon_7b", "falcon_sequential",
                    "gemma2", "gemma3", "glm", "glm4", "gpt2", "gpt_neox", "gpt_neox_sequential",
                    "gpt_oss", "gpt_oss_mxfp4", "granite", "mixtral", "olmo2", "qwen2_moe",
                    "qwen3_moe", "phi3_window", "phi4_longrope", "phi4_shortrope", "smollm3",
                    "starcoder2", "gguf_deepseek_v2_lite", "gguf_deepseek_v3", "gguf_f16",
                    "gguf_chatglm", "gguf_falcon_11b", "gguf_falcon_40b", "gguf_falcon_7b",
                    "gguf_glm4", "gguf_glm4_moe", "gguf_gpt2", "gguf_gptneox",
                    "gguf_gptneox_sequential", "gguf_olmo2", "gguf_starcoder2", "gguf_gemma2",
                    "gguf_gemma3", "gguf_gpt_oss", "gguf_granite", "gguf_phi3", "gguf_qwen2_moe",
                    "gguf_mixed", "gguf_mixtral", "gguf_q4_0", "gguf_q4_k_m", "gguf_q8_0_tied",
                    "gguf_qwen3_moe", "llama2_f32", "llama3_sharded", "llama_linear",
                    "llama_tied_bias_f16", "mistral_window", "qwen2_window", "quantised_awq",
                    "quantised_ct_int4", "quantised_ct_int4_experts", "quantised_ct_fp8_channel",
                    "quantised_ct_fp8_tensor", "quantised_fp8_block", "quantised_fp8_deepseek",
                    "quantised_ct_int4_zeros", "quantised_ct_int8_channel", "quantised_ct_w8a8",
                    "quantised_gptq", "quantised_gptq_int8", "quantised_gptq_v2_order",
                    "qwen2_yarn", "qwen3_bias", "qwen3_f32"),
    [](const auto& tested) { return tested.param; });

}  // namespace
}  // namespace penstock
