// The families of models on the emulated device, beside the CPU: a small random model of each
// description, and the same with each part of it computed wrongly.

#include <gtest/gtest.h>

#include <algorithm>
#include <string>
#include <utility>

#include "model/cuda/cuda_model_check.h"
#include "model/cuda/cuda_runner.h"
#include "model/forward/runner_check.h"
#include "model/forward/transformer_runner.h"
#include "tests/cuda/runner/rounded_weights.h"
#include "tests/cuda/runner/runner_rig.h"
#include "tests/support/environment.h"

namespace penstock {
namespace {

constexpr double kLimit = 2.5e-2;  // of rounding: activations are bf16 here

// The sizes of real latents, whose queries differ from the input's size.
void MakeLatentsFit(ModelConfig& config) {
  config.kv_heads = 1;
  config.heads = 20;  // more than a tile has rows
  config.latent = {.rank = 512,
                   .query_rank = config.latent.query_rank > 0 ? 72 : 0,
                   .plain_dims = 24,
                   .rope_dims = 64,
                   .value_dims = 40};
  config.head_dim = config.latent.rank + config.latent.rope_dims;
  config.rope.rotary_dims = config.latent.rope_dims;
  config.experts.dense = {true, false};
  config.experts.scale = 20;  // experts show beside the heads' large sums
}

// The description of a golden checkpoint with sizes that the kernels take, and with numbers so far
// from those that change nothing that ignoring them shows.
ModelConfig DescriptionOf(const std::string& name) {
  ModelConfig config = *LoadModelConfig(SourceFolder() + "/tests/golden/logits/" + name);
  const ModelConfig sizes = TinyConfig();
  config.layers = sizes.layers;
  config.hidden = sizes.hidden;
  config.intermediate = sizes.intermediate;
  config.heads = sizes.heads;
  config.kv_heads = sizes.kv_heads;
  config.head_dim = sizes.head_dim;
  config.vocab = sizes.vocab;
  config.max_position = sizes.max_position;
  if (config.rope.rotary_dims != 0) config.rope.rotary_dims = 24;
  if (!config.rope.divisors.empty()) {
    config.rope.divisors.assign(config.rope.RotaryDims(config.head_dim) / 2, 3.0f);
  }
  if (!config.sliding_window.empty()) config.sliding_window = {10, 0};
  if (!config.layer_rope.empty()) {
    const auto other = std::ranges::find_if(
        config.layer_rope, [&](LayerRope rope) { return rope != config.layer_rope.front(); });
    const bool differ = other != config.layer_rope.end();
    config.layer_rope = {config.layer_rope.front(), differ ? *other : config.layer_rope.front()};
  }
  if (config.HasLatents()) MakeLatentsFit(config);
  if (config.attention_scale != 0) config.attention_scale = 0.05f;
  if (config.attention_cap != 0) config.attention_cap = 2;
  if (config.logit_cap != 0) config.logit_cap = 2;
  if (config.experts.count != 0) {
    config.experts.intermediate = 40;  // not a multiple of 16: padded
    if (config.experts.shared_intermediate != 0) config.experts.shared_intermediate = 24;
    if (config.experts.sigmoid) config.experts.normalise = false;  // else as good as a softmax
  }
  return config;
}

// Random norms and sinks: RandomWeights has norms of 1, and sinks near 0.
Weights VariedWeights(const ModelConfig& config, const MatrixForms& forms = {}) {
  Weights weights = RandomWeights(config, 5, 0.2f, forms);
  uint32_t state = 1;
  const auto vary = [&](std::vector<float>& norm) {
    const size_t biases = config.layer_norm ? norm.size() / 2 : 0;  // as they are
    for (size_t i = 0; i < norm.size() - biases; ++i) {
      state = state * 1664525u + 1013904223u;
      norm[i] = 0.5f + static_cast<float>(state >> 16) / 65536.0f;
    }
  };
  for (LayerWeights& layer : weights.layers) {
    for (auto* norm : {&layer.attention_norm, &layer.attention_output_norm, &layer.mlp_norm,
                       &layer.mlp_output_norm, &layer.q_norm, &layer.k_norm}) {
      vary(*norm);
    }
    if (layer.latents.has_value()) {
      vary(layer.latents->norm);
      vary(layer.latents->query_norm);
    }
    for (size_t i = 0; i < layer.sinks.size(); ++i) layer.sinks[i] = static_cast<float>(i) + 1;
  }
  vary(weights.final_norm);
  MakeChoicesClear(weights);
  return weights;
}

using Feeds = std::vector<Rig::Feed>;

class Family {
 public:
  explicit Family(Weights weights)
      : weights_(std::move(weights)), device_(*cuda::CudaDevice::Open(0)) {}

  ModelConfig& config() { return weights_.config; }
  Weights& weights() { return weights_; }
  std::unique_ptr<CudaRunner> OnGpu() { return *CudaRunner::Create(weights_, *device_, {}); }

  // The logits of steps of every kind.
  static std::vector<float> Logits(ModelRunner& runner) {
    Rig rig(runner, 3);
    std::vector<float> all;
    for (const Feeds& feeds : {Feeds{{0, Prompt(21, 1), 0}, {1, Prompt(5, 2), 0, false}},
                               Feeds{{2, Prompt(70, 3), 0}, {0, {7}, 21}, {1, {9, 11}, 5}},
                               Feeds{{1, {3}, 7}, {2, {5}, 70}, {0, {13}, 22}}}) {
      const std::vector<float> logits = rig.Step(feeds);
      all.insert(all.end(), logits.begin(), logits.end());
    }
    return all;
  }
  std::vector<float> OnCpu(std::vector<float> (*logits)(ModelRunner&) = &Logits) {
    TransformerRunner runner(weights_, {}, 512);
    return logits(runner);
  }
  // How far the GPU is from the CPU's `want` if `mistake` changes the model that it loads.
  template <class Mistake>
  double Off(const std::vector<float>& want, const Mistake& mistake) {
    const ModelConfig right = weights_.config;
    const std::vector<LayerWeights> layers = KeptNorms();
    mistake(*this);
    const double off = Deviation(Logits(*OnGpu()), want);
    weights_.config = right;
    for (size_t i = 0; i < layers.size(); ++i) {
      weights_.layers[i].attention_output_norm = layers[i].attention_output_norm;
      weights_.layers[i].mlp_output_norm = layers[i].mlp_output_norm;
      weights_.layers[i].sinks = layers[i].sinks;
    }
    return off;
  }

 private:
  std::vector<LayerWeights> KeptNorms() const {
    std::vector<LayerWeights> kept(weights_.layers.size());
    for (size_t i = 0; i < kept.size(); ++i) {
      kept[i].attention_output_norm = weights_.layers[i].attention_output_norm;
      kept[i].mlp_output_norm = weights_.layers[i].mlp_output_norm;
      kept[i].sinks = weights_.layers[i].sinks;
    }
    return kept;
  }

  Weights weights_;
  std::unique_ptr<cuda::CudaDevice> device_;
};

// As in families other than gpt-oss.
void UsePlainGate(ExpertConfig& experts) {
  experts.gate_limit = 0;
  experts.biases = false;
}

class CudaFamilies : public testing::TestWithParam<const char*> {};

TEST_P(CudaFamilies, AgreesWithTheCpu) {
  Family family(VariedWeights(DescriptionOf(GetParam())));
  EXPECT_LT(Deviation(Family::Logits(*family.OnGpu()), family.OnCpu()), kLimit);
}

// Each part of the description that is not Llama's makes a difference on the GPU.
TEST_P(CudaFamilies, IgnoringAPartShows) {
  Family family(VariedWeights(DescriptionOf(GetParam())));
  const std::vector<float> want = family.OnCpu();
  const ModelConfig right = family.config();
  const auto expect_shown = [&](const char* what, bool has, const auto& mistake) {
    if (!has) return;
    EXPECT_GT(family.Off(want, mistake), 2 * kLimit) << what;
  };
  using F = Family&;
  expect_shown("scale", right.attention_scale != 0, [](F f) { f.config().attention_scale = 0; });
  expect_shown("cap", right.attention_cap != 0, [](F f) { f.config().attention_cap = 0; });
  expect_shown("logit cap", right.logit_cap != 0, [](F f) { f.config().logit_cap = 0; });
  expect_shown("embedding", right.embedding_multiplier != 1,
               [](F f) { f.config().embedding_multiplier = 1; });
  expect_shown("residual", right.residual_multiplier != 1,
               [](F f) { f.config().residual_multiplier = 1; });
  expect_shown("divisor", right.logit_divisor != 1, [](F f) { f.config().logit_divisor = 1; });
  expect_shown("gate", right.names.HasGate() && right.activation == Activation::kGeluTanh,
               [](F f) { f.config().activation = Activation::kSilu; });
  expect_shown("layer norm", right.layer_norm, [](F f) { f.config().layer_norm = false; });
  expect_shown("parallel", right.parallel_residual,
               [](F f) { f.config().parallel_residual = false; });
  expect_shown("wide norms", right.qk_norm == QkNorm::kWidth,
               [](F f) { f.config().qk_norm = QkNorm::kHead; });
  expect_shown("rotary", right.rope.rotary_dims != 0 && !right.HasLatents(), [](F f) {
    f.config().rope.rotary_dims = 16;
    if (!f.config().rope.divisors.empty()) f.config().rope.divisors.resize(8);
  });
  expect_shown("longrope", !right.rope.divisors.empty(),
               [](F f) { f.config().rope.scaling = RopeScaling::kNone; });
  if (right.rope.scaling == RopeScaling::kLongRope) {
    expect_shown("attention factor", true, [](F f) { f.config().rope.attention_factor *= 1.5f; });
  }
  expect_shown("yarn", right.rope.scaling == RopeScaling::kYarn,
               [](F f) { f.config().rope.scaling = RopeScaling::kNone; });
  const auto& ropes = right.layer_rope;
  for (size_t i = 0; i < ropes.size(); ++i) {
    const bool main = ropes[i] == LayerRope::kMain;
    expect_shown("rope of a layer", !main,
                 [i](F f) { f.config().layer_rope[i] = LayerRope::kMain; });
    expect_shown("no rope", main, [i](F f) { f.config().layer_rope[i] = LayerRope::kNone; });
  }
  const ExpertConfig& experts = right.experts;
  expect_shown("weights add up to 1", experts.count != 0,
               [](F f) { f.config().experts.normalise ^= true; });
  expect_shown("sigmoid", experts.sigmoid, [](F f) { f.config().experts.sigmoid = false; });
  expect_shown("scale", experts.scale != 1, [](F f) { f.config().experts.scale = 1; });
  expect_shown("experts for a token", experts.count != 0,
               [](F f) { --f.config().experts.per_token; });
  expect_shown("clamped gate", experts.gate_limit != 0,
               [](F f) { UsePlainGate(f.config().experts); });
  expect_shown("limit", experts.gate_limit != 0, [](F f) { f.config().experts.gate_limit *= 100; });
  const LayerWeights& layer = family.weights().layers[0];
  expect_shown("norm of attention's output", !layer.attention_output_norm.empty(),
               [](F f) { f.weights().layers[0].attention_output_norm.clear(); });
  expect_shown("norm of the MLP's output", !layer.mlp_output_norm.empty(),
               [](F f) { f.weights().layers[0].mlp_output_norm.clear(); });
}

// Chunks, the other rows and the batch change no bit.
TEST_P(CudaFamilies, ExactlyTheSameInAnyCompany) {
  Family family(VariedWeights(DescriptionOf(GetParam())));
  const auto runner = family.OnGpu();
  Rig whole(*runner, 3), chunks(*runner, 3);
  const std::vector<uint32_t> prompt = Prompt(90, 6);
  const std::vector<float> want = whole.Step({{0, prompt, 0}});
  const std::vector<float> next = whole.Step({{0, {8}, 90}});
  chunks.Step({{1, Prompt(11, 4), 0}, {0, {prompt.begin(), prompt.begin() + 7}, 0, false}});
  chunks.Step({{0, {prompt[7]}, 7, false}, {2, Prompt(3, 5), 0}});
  EXPECT_EQ(chunks.Step({{0, {prompt.begin() + 8, prompt.end()}, 8}}), want);
  const std::vector<float> three = chunks.Step({{2, {1}, 3}, {1, {2}, 11}, {0, {8}, 90}});
  EXPECT_TRUE(std::equal(next.begin(), next.end(), three.end() - 101));
}

INSTANTIATE_TEST_SUITE_P(Dense, CudaFamilies,
                         testing::Values("falcon_11b", "falcon_7b", "falcon_sequential", "gemma2",
                                         "gemma3", "glm", "glm4", "gpt2", "gpt_neox",
                                         "gpt_neox_sequential", "granite", "olmo2", "phi3_window",
                                         "phi4_longrope", "smollm3", "starcoder2"),
                         [](const auto& name) { return std::string(name.param); });

INSTANTIATE_TEST_SUITE_P(Experts, CudaFamilies,
                         testing::Values("glm4_moe", "gpt_oss", "mixtral", "qwen2_moe",
                                         "qwen3_moe"),
                         [](const auto& name) { return std::string(name.param); });

INSTANTIATE_TEST_SUITE_P(Latents, CudaFamilies,
                         testing::Values("deepseek_v2", "deepseek_v2_lite", "deepseek_v3"),
                         [](const auto& name) { return std::string(name.param); });

// Latents whose queries have a latent, too, without experts.
ModelConfig WithLatents() {
  ModelConfig config = DescriptionOf("deepseek_v3");
  config.experts = {};
  return config;
}

TEST(CudaFamily, QueriesOfLatentsAgreeWithTheCpu) {
  Family family(VariedWeights(WithLatents()));
  const std::vector<float> want = family.OnCpu();
  EXPECT_LT(Deviation(Family::Logits(*family.OnGpu()), want), kLimit);
  const auto off = [&](const auto& mistake) {
    Family wrong(VariedWeights(WithLatents()));
    for (LayerWeights& layer : wrong.weights().layers) mistake(*layer.latents);
    return Deviation(Family::Logits(*wrong.OnGpu()), want);
  };
  EXPECT_GT(off([](LatentWeights& w) { std::ranges::fill(w.norm, 1.0f); }), 2 * kLimit);
  EXPECT_GT(off([](LatentWeights& w) { std::ranges::fill(w.query_norm, 1.0f); }), 2 * kLimit);
  EXPECT_GT(off([](LatentWeights& w) { std::ranges::reverse(w.values); }), 2 * kLimit);
  EXPECT_GT(off([](LatentWeights& w) { std::ranges::reverse(w.queries); }), 2 * kLimit);
}

// gpt-oss's attention without its experts: sinks, and windows in every second layer.
ModelConfig WithSinks() {
  ModelConfig config = TinyConfig();
  config.attention_sinks = true;
  config.sliding_window = {10, 0};
  return config;
}

TEST(CudaFamily, SinksAgreeWithTheCpu) {
  Family family(VariedWeights(WithSinks()));
  const std::vector<float> want = family.OnCpu();
  EXPECT_LT(Deviation(Family::Logits(*family.OnGpu()), want), kLimit);
  const auto forget = [](Family& f) {
    for (LayerWeights& layer : f.weights().layers) layer.sinks.clear();
  };
  EXPECT_GT(family.Off(want, forget), 2 * kLimit);
}

TEST(CudaFamily, EachBiasOfExpertsShows) {
  const auto off = [](const auto& mistake) {
    Family family(VariedWeights(DescriptionOf("gpt_oss")));
    const std::vector<float> want = family.OnCpu();
    for (LayerWeights& layer : family.weights().layers) mistake(*layer.experts);
    return Deviation(Family::Logits(*family.OnGpu()), want);
  };
  EXPECT_LT(off([](ExpertLayer&) {}), kLimit);
  EXPECT_GT(off([](ExpertLayer& layer) { layer.router_bias.clear(); }), 2 * kLimit);
  const auto clear = [](std::vector<float> GatedWeights::*bias) {
    return [=](ExpertLayer& layer) {
      for (GatedWeights& expert : layer.experts) (expert.*bias).clear();
    };
  };
  EXPECT_GT(off(clear(&GatedWeights::gate_up_bias)), 2 * kLimit);
  EXPECT_GT(off(clear(&GatedWeights::down_bias)), 2 * kLimit);
}

// Steps whose experts have few rows, and many: then matrices are expanded.
std::vector<float> LogitsOfExperts(ModelRunner& runner) {
  std::vector<float> all = Family::Logits(runner);
  Rig rig(runner, 2);
  const std::vector<float> many = rig.Step({{0, Prompt(100, 1), 0}, {1, Prompt(100, 2), 0}});
  all.insert(all.end(), many.begin(), many.end());
  return all;
}

TEST(CudaFamily, ExpertsInCodesHaveTheBitsOfBf16) {
  const QuantisedFormat formats[] = {
      {.code = CodeType::kE2m1, .bits = 4, .group = 32, .scale = ScaleType::kBf16},
      // Expanded when it is uploaded.
      {.code = CodeType::kIq4, .bits = 4, .group = 32, .scale = ScaleType::kBf16},
      {.bits = 4, .group = 32},
      {.bits = 8, .group = 64},
      {.code = CodeType::kE4m3, .group = 32, .scale = ScaleType::kF32}};
  for (const QuantisedFormat& format : formats) {
    SCOPED_TRACE(format.Name());
    ModelConfig config = DescriptionOf("gpt_oss");
    config.experts.intermediate = 64;
    const MatrixForms forms{.layers = format};
    Family codes(VariedWeights(config, forms)), bf16(VariedWeights(config, forms));
    for (LayerWeights& layer : bf16.weights().layers) RoundToBf16(*layer.experts);
    EXPECT_EQ(LogitsOfExperts(*codes.OnGpu()), LogitsOfExperts(*bf16.OnGpu()));
    // The GPU rounds weights to bf16, too.
    const double off = Deviation(LogitsOfExperts(*codes.OnGpu()), codes.OnCpu(&LogitsOfExperts));
    EXPECT_LT(off, 2 * kLimit);
  }
}

TEST(CudaFamily, LearnedPositionsShow) {
  Family family(VariedWeights(DescriptionOf("gpt2")));
  const std::vector<float> want = family.OnCpu();
  family.weights().positions = Buffer();
  EXPECT_GT(Deviation(Family::Logits(*family.OnGpu()), want), 2 * kLimit);
}

// The check of a GPU at start (CheckRunner) of a model like `large`, on a GPU that computes what
// `mistake` makes of its weights.
template <class Mistake>
std::string StartUpWith(const ModelConfig& large, const Mistake& mistake,
                        const KvPageFormat& format = {}) {
  const auto small_weights = [&] {
    Weights weights = SmallWeightsLike(large, 1);
    if (format.centred) AddRandomMeans(weights);
    return weights;
  };
  Weights wrong = small_weights();
  mistake(wrong);
  const auto device = *cuda::CudaDevice::Open(0);
  const CudaRunner::Options options{.max_step_tokens = static_cast<int32_t>(RunnerCheckTokens())};
  const auto checked = *CudaRunner::Create(wrong, *device, options);
  const Weights weights = small_weights();
  TransformerRunner reference(weights, {}, options.max_step_tokens);
  const KvLayout layout = reference.kv_layout().In(format);
  const int64_t blocks = RunnerCheckBlocks(layout);
  const Buffer own(static_cast<size_t>(blocks) * layout.BlockStride()), other(own.bytes());
  return Message(CheckRunner({*checked, {own.as<std::byte>(), blocks, layout}},
                             {reference, {other.as<std::byte>(), blocks, layout}}));
}

// The same for a mistake in the description.
template <class Mistake>
std::string StartUp(const ModelConfig& large, const Mistake& mistake) {
  return StartUpWith(large, [&](Weights& weights) { mistake(weights.config); });
}

TEST(CudaFamily, StartUpFindsWhatIsLeftOut) {
  using Config = ModelConfig&;
  const auto right = [](Config) {};
  const ModelConfig gemma = DescriptionOf("gemma2");
  EXPECT_EQ(StartUp(gemma, right), "");
  EXPECT_NE(StartUp(gemma, [](Config c) { c.attention_cap = 0; }), "");
  EXPECT_NE(StartUp(gemma, [](Config c) { c.logit_cap = 0; }), "");
  const ModelConfig gemma3 = DescriptionOf("gemma3");
  EXPECT_EQ(StartUp(gemma3, right), "");
  EXPECT_NE(StartUp(gemma3, [](Config c) { c.layer_rope = {}; }), "");
  const ModelConfig neox = DescriptionOf("gpt_neox");
  EXPECT_EQ(StartUp(neox, right), "");
  EXPECT_NE(StartUp(neox, [](Config c) { c.parallel_residual = false; }), "");
  EXPECT_NE(StartUp(neox, [](Config c) { c.rope.rotary_dims = 16; }), "");
}

// Means of keys, in layers with and without RoPE.
TEST(CudaFamily, StartUpFindsMeansThatAreLeftOut) {
  ModelConfig smollm = DescriptionOf("smollm3");
  smollm.sliding_window = {};
  const KvPageFormat format{.dtype = KvDtype::kI8, .span = 64, .centred = true};
  EXPECT_EQ(StartUpWith(
                smollm, [](Weights&) {}, format),
            "");
  const auto leave_out = [](Weights& weights) {
    for (LayerWeights& layer : weights.layers) std::ranges::fill(layer.key_means, 0.0f);
  };
  EXPECT_NE(StartUpWith(smollm, leave_out, format), "");
}

// The numbers of experts of real models, with sizes that the check makes small.
ModelConfig MixtureLike(const std::string& name, int32_t experts, int32_t per_token) {
  ModelConfig config = DescriptionOf(name);
  config.experts.count = experts;
  config.experts.per_token = per_token;
  return config;
}

TEST(CudaFamily, StartUpFindsWhatIsLeftOutOfExperts) {
  using Config = ModelConfig&;
  const auto right = [](Config) {};
  const ModelConfig mixtral = MixtureLike("mixtral", 8, 2);
  EXPECT_EQ(StartUp(mixtral, right), "");
  EXPECT_NE(StartUp(mixtral, [](Config c) { c.experts.normalise = false; }), "");
  EXPECT_EQ(StartUp(MixtureLike("qwen3_moe", 128, 8), right), "");
  EXPECT_EQ(StartUp(MixtureLike("qwen2_moe", 60, 4), right), "");
  ModelConfig glm = MixtureLike("glm4_moe", 160, 8);
  glm.experts.scale = 2.5f;
  EXPECT_EQ(StartUp(glm, right), "");
  EXPECT_NE(StartUp(glm, [](Config c) { c.experts.scale = 1; }), "");
}

TEST(CudaFamily, StartUpFindsWhatIsLeftOutOfLatents) {
  using Config = ModelConfig&;
  ModelConfig lite = MixtureLike("deepseek_v2_lite", 64, 6);
  lite.heads = 4;
  EXPECT_EQ(StartUp(lite, [](Config) {}), "");
  EXPECT_NE(StartUp(lite, [](Config c) { c.rope.scaling = RopeScaling::kNone; }), "");
  ModelConfig v2 = MixtureLike("deepseek_v2", 160, 6);
  v2.heads = 4;
  v2.experts.groups = 8;
  v2.experts.kept_groups = 3;
  EXPECT_EQ(StartUp(v2, [](Config) {}), "");
  ModelConfig v3 = MixtureLike("deepseek_v3", 256, 8);
  v3.experts.groups = 8;
  v3.experts.kept_groups = 4;
  EXPECT_EQ(StartUp(v3, [](Config) {}), "");
  const auto without = [&](const auto& change) {
    return StartUpWith(lite, [&](Weights& weights) {
      for (LayerWeights& layer : weights.layers) change(*layer.latents);
    });
  };
  EXPECT_NE(without([](LatentWeights& w) { std::ranges::reverse(w.queries); }), "");
  EXPECT_NE(without([](LatentWeights& w) { std::ranges::reverse(w.values); }), "");
}

TEST(CudaFamily, StartUpFindsWhatIsLeftOutOfGptOss) {
  using Config = ModelConfig&;
  const auto right = [](Config) {};
  EXPECT_EQ(StartUp(MixtureLike("gpt_oss", 128, 4), right), "");
  const ModelConfig small = MixtureLike("gpt_oss", 32, 4);
  EXPECT_EQ(StartUp(small, right), "");
  EXPECT_NE(StartUp(small, [](Config c) { UsePlainGate(c.experts); }), "");
  EXPECT_NE(StartUp(small, [](Config c) { c.experts.gate_limit = 7; }), "");
  const auto without = [&](const auto& change) {
    return StartUpWith(small, [&](Weights& weights) {
      for (LayerWeights& layer : weights.layers) change(*layer.experts);
    });
  };
  EXPECT_NE(without([](ExpertLayer& layer) { layer.router_bias.clear(); }), "");
  EXPECT_NE(without([](ExpertLayer& layer) {
              for (GatedWeights& expert : layer.experts) expert.gate_up_bias.clear();
            }),
            "");
  EXPECT_NE(without([](ExpertLayer& layer) {
              for (GatedWeights& expert : layer.experts) expert.down_bias.clear();
            }),
            "");
}

// GELU's two forms differ by less than rounding, so that only the bits tell which one was used.
TEST(CudaFamily, TheFormsOfGeluDiffer) {
  for (const char* name : {"gpt_neox", "gpt2"}) {
    Family family(VariedWeights(DescriptionOf(name)));
    const std::vector<float> right = Family::Logits(*family.OnGpu());
    const bool exact = family.config().activation == Activation::kGelu;
    const auto other = [=](Family& f) {
      f.config().activation = exact ? Activation::kGeluTanh : Activation::kGelu;
    };
    EXPECT_GT(family.Off(right, other), 1e-6) << name;
  }
}

}  // namespace
}  // namespace penstock
