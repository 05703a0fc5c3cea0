#include "lab/plan/model_cost.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <string>

#include "kernels/attention.h"
#include "model/checkpoint/checkpoint.h"
#include "model/load/checkpoint_tensors.h"
#include "model/load/load_model.h"
#include "tests/lab/plan/plan_models.h"
#include "tests/support/environment.h"

namespace penstock {
namespace {

using ::testing::HasSubstr;

ModelCost CostFor(const ModelConfig& config, KvDtype dtype = KvDtype::kBf16) {
  return CostOf(config, WeightsOf(config), KvLayoutOf(config, 16, {.dtype = dtype}).value());
}

// Qwen3-30B-A3B.
ModelConfig Qwen30b() {
  return {.architecture = "Qwen3MoeForCausalLM",
          .layers = 48,
          .hidden = 2048,
          .intermediate = 6144,
          .heads = 32,
          .kv_heads = 4,
          .head_dim = 128,
          .vocab = 151936,
          .max_position = 40960,
          .qk_norm = QkNorm::kHead,
          .experts = {.count = 128, .per_token = 8, .intermediate = 768}};
}

// 2 * head_dim bytes a position for each kind of rotation.
TEST(ModelCost, CentredKeysTakeTheAnglesOfAllPositions) {
  ModelConfig config = Llama8b();
  config.max_position = 1000;
  const auto bytes = [&](const KvPageFormat& format) {
    return CostOf(config, WeightsOf(config), KvLayoutOf(config, 16, format).value()).angle_bytes;
  };
  const KvPageFormat centred{.dtype = KvDtype::kK3v3, .span = 128, .centred = true};
  std::vector<float> turns(1000 * 64, 1.0f);
  const View<const float, 2> angles(turns.data(), {1000, 64});
  EXPECT_EQ(bytes(centred), PositionAngles(angles, angles, 128).bytes());
  EXPECT_EQ(bytes({.dtype = KvDtype::kK3v3, .span = 128}), 0u);
  config.layer_rope.assign(32, LayerRope::kMain);
  config.layer_rope[3] = LayerRope::kNone;
  EXPECT_EQ(bytes(centred), 2 * PositionAngles(angles, angles, 128).bytes());
}

// A latent of 512 and a key of 64 for each layer, in bf16: an eighth of what 16 heads of keys and
// values would take, and of a page next to nothing is padding.
TEST(ModelCost, ALatentIsAnEighthOfHeads) {
  const ModelCost cost = CostFor(V2Lite());
  EXPECT_EQ(cost.kv_bytes_per_token(), 27 * 576 * 2);
  EXPECT_NEAR(static_cast<double>(cost.layout.BlockStride()) / 16, 27 * 576 * 2,
              0.02 * 27 * 576 * 2);
  EXPECT_NEAR(static_cast<double>(cost.weights.elements()) / 1e9, 15.71, 0.01);
  const auto forms = KvFormsOf(cost);
  const auto i8 = std::find_if(forms.begin(), forms.end(),
                               [](const KvForm& form) { return form.name == "i8"; });
  ASSERT_NE(i8, forms.end());
  EXPECT_EQ(i8->bytes_per_token, 27 * (512 * 8.25 / 8 + 64 * 2)) << "keys stay as they are";
  EXPECT_EQ(cost.attention_flops_a_pair, 2.0 * 16 * (576 + 512));
  EXPECT_THAT(Message(KvLayoutOf(V2Lite(), 16, {.dtype = KvDtype::kF8}).status()),
              HasSubstr("latents"));
}

TEST(ModelCost, CountsAKnownModel) {
  const ModelCost cost = CostFor(Llama8b());
  EXPECT_EQ(cost.weights.elements(), 8030261248u);  // as its card says
  EXPECT_EQ(cost.layout.BlockStride(), size_t{2} << 20);
  EXPECT_EQ(KvFormsOf(cost).front().bytes_per_token, 131072);
  // 28.6 TFLOP of matrices and 1.1 of attention.
  EXPECT_NEAR(cost.PrefillFlops(2048, 0) / 1e12, 29.7, 0.2);
  EXPECT_NEAR(cost.PrefillFlops(2048, 2047) / 1e9, 16.1, 0.5);
}

TEST(ModelCost, CountsTheNormsOfAFamily) {
  ModelConfig config = Llama8b();
  const uint64_t llama = WeightsOf(config).elements();
  config.names = FindModelFamily("Glm4ForCausalLM")->names;  // two more norms in a layer
  EXPECT_EQ(WeightsOf(config).elements(), llama + 32u * 2 * 4096);
  config.names = FindModelFamily("Olmo2ForCausalLM")->names;
  config.qk_norm = FindModelFamily("Olmo2ForCausalLM")->qk_norm;
  EXPECT_EQ(WeightsOf(config).elements(), llama + 32u * (4096 + 1024));
}

// 30.5 billion parameters, of which a token uses 3.3 billion.
TEST(ModelCost, CountsExpertsAndThoseThatATokenUses) {
  const ModelCost cost = CostFor(Qwen30b());
  EXPECT_NEAR(static_cast<double>(cost.weights.elements()) / 1e9, 30.53, 0.01);
  EXPECT_NEAR(cost.StepBytes(1) / 2e9, 3.35 - 0.31, 0.02);
  EXPECT_NEAR(cost.flops_per_token / 2e9, 3.35 - 0.62, 0.02);
}

TEST(ModelCost, ABatchReadsTheExpertsOfAllItsTokens) {
  const ModelCost cost = CostFor(Qwen30b());
  EXPECT_NEAR(cost.ExpertShare(1), 8.0 / 128, 1e-12);
  EXPECT_NEAR(cost.ExpertShare(16), 1 - std::pow(120.0 / 128, 16), 1e-12);
  EXPECT_GT(cost.StepBytes(16), 5 * cost.StepBytes(1));
  EXPECT_LE(cost.StepBytes(512), cost.weights.bytes());
  EXPECT_EQ(CostFor(Llama8b()).StepBytes(16), CostFor(Llama8b()).StepBytes(1));
}

TEST(ModelCost, ASlidingWindowBoundsAttentionInItsLayersOnly) {
  ModelConfig config = Llama8b();
  const ModelCost all = CostFor(config);
  config.sliding_window.assign(32, 0);
  for (size_t layer = 1; layer < 32; layer += 2) config.sliding_window[layer] = 1024;
  const ModelCost half = CostFor(config);
  EXPECT_EQ(half.AttendedTokens(32768), 16 * 32768 + 16 * 1024);
  EXPECT_EQ(half.AttendedTokens(512), all.AttendedTokens(512));
  // Token t of a windowed layer attends to min(t + 1, 1024) tokens.
  double pairs = 0;
  for (int t = 100; t < 4096; ++t) pairs += 16 * (t + 1) + 16 * std::min(t + 1, 1024);
  EXPECT_EQ(half.AttendedPairs(4096, 100), pairs);
  EXPECT_EQ(all.AttendedPairs(4096, 4095), 32 * 4096);
}

TEST(ModelCost, PagesHaveTheFormatOfWorkers) {
  for (const KvDtype dtype : kKvDtypes) {
    const ModelCost cost = CostFor(Llama8b(), dtype);
    const auto forms = KvFormsOf(cost);
    EXPECT_EQ(forms.front().name, KvDtypeName(dtype));
    // Pages that are not in bf16 travel as they are (docs/kv-formats.md).
    EXPECT_EQ(forms.size() > 1, dtype == KvDtype::kBf16) << forms.front().name;
  }
  // 8.125, 8.25, 6.25 and 4.25 bits an element, as docs/kv-formats.md has them.
  EXPECT_EQ(CostFor(Llama8b(), KvDtype::kF8).kv_bytes_per_token(), 65536 * 8.125 / 8);
  EXPECT_EQ(CostFor(Llama8b(), KvDtype::kI4r).kv_bytes_per_token(), 65536 * 4.25 / 8);
  ModelConfig odd = Llama8b();
  odd.head_dim = 72;
  EXPECT_THAT(Message(KvLayoutOf(odd, 16, {.dtype = KvDtype::kI8}).status()),
              HasSubstr("multiples of 16"));
}

TEST(WeightMeter, RoundsA16BitModel) {
  const WeightSizes plain = WeightsOf(Llama8b());
  const WeightSizes int8 = WeightsOf(Llama8b(), WeightPolicy::kInt8);
  const WeightSizes int4 = WeightsOf(Llama8b(), WeightPolicy::kInt4);
  EXPECT_EQ(plain.form, "bf16");
  EXPECT_EQ(int4.form, "int4 g32, lm_head int8 g128");
  // A scale of 16 bits for 128 or 32 weights.
  EXPECT_EQ(int8.layers.bytes * 8 / static_cast<double>(int8.layers.elements), 8.125);
  EXPECT_EQ(int4.layers.bytes * 8 / static_cast<double>(int4.layers.elements), 4.5);
  EXPECT_EQ(int4.head.bytes, int8.head.bytes);
  // And one of 32 bits on GPUs.
  const auto bits = [](const WeightPart& part) {
    return part.bytes * 8 / static_cast<double>(part.elements);
  };
  EXPECT_EQ(bits(int8.OnGpu().layers), 8.25);
  EXPECT_EQ(bits(int4.OnGpu().layers), 5);
  EXPECT_EQ(plain.OnGpu().bytes(), plain.bytes());
  EXPECT_EQ(int4.tables.bytes, plain.tables.bytes);
}

// ---------------------------------------------------------------- real checkpoints

// Calls check(checkpoint, path) for every model of tests/golden/logits, which are of all families.
void ForEachGoldenModel(const auto& check) {
  int count = 0;
  const std::string folder = SourceFolder() + "/tests/golden/logits";
  for (const auto& entry : std::filesystem::directory_iterator(folder)) {
    SCOPED_TRACE(entry.path().filename());
    const auto file = entry.path() / "model.gguf";
    const std::string path = std::filesystem::exists(file) ? file : entry.path();
    const auto checkpoint = Checkpoint::Open(path);
    ASSERT_TRUE(checkpoint.ok()) << checkpoint.status();
    check(*checkpoint, path);
    ++count;
  }
  EXPECT_GT(count, 40);
}

WeightSizes Measured(const Checkpoint& checkpoint) {
  const CheckpointTensors tensors(checkpoint);
  auto sizes = MeasureWeights(checkpoint.config(), {}, &tensors);
  EXPECT_TRUE(sizes.ok()) << sizes.status();
  return sizes.ok() ? *sizes : WeightSizes();
}

// The bytes of a matrix in memory, by the formats of the sections that it was loaded into.
double LoadedBytes(const WeightMatrix& matrix) {
  if (matrix.packed() != nullptr) {
    return 2.0 * static_cast<double>(matrix.outputs()) * static_cast<double>(matrix.inputs());
  }
  double bytes = 0;
  for (const QuantisedMatrix& section : matrix.quantised()) {
    const QuantisedFormat& format = section.format();
    bytes += static_cast<double>(section.outputs()) / QuantisedMatrix::kPanel *
             static_cast<double>(section.inputs()) / (format.group * format.run()) *
             static_cast<double>(format.run_bytes());
  }
  return bytes;
}

double LoadedBytes(const LatentWeights& latents) {
  double elements = 0;
  for (const auto* matrices : {&latents.queries, &latents.values}) {
    for (const PackedMatrix& matrix : *matrices) {
      elements += static_cast<double>(matrix.outputs()) * static_cast<double>(matrix.inputs());
    }
  }
  return 2 * elements;
}

TEST(WeightMeter, MeasuresWhatAWorkerLoads) {
  ForEachGoldenModel([](const Checkpoint& checkpoint, const std::string& path) {
    const auto model = LoadModel(path);
    ASSERT_TRUE(model.ok()) << model.status();
    const WeightSizes sizes = Measured(checkpoint);
    double layers = 0;
    for (const LayerWeights& layer : model->weights.layers) {
      for (const WeightMatrix* matrix : layer.Matrices()) layers += LoadedBytes(*matrix);
      if (layer.latents.has_value()) layers += LoadedBytes(*layer.latents);
    }
    // The format of a tensor is taken from the first layer, so others may have zero points, too.
    EXPECT_NEAR((sizes.layers.bytes + sizes.experts.bytes) / layers, 1, 0.02);
    EXPECT_NEAR(sizes.head.bytes / LoadedBytes(model->weights.lm_head), 1, 1e-9);
    EXPECT_TRUE(model->weights.FormName().starts_with(sizes.form))
        << sizes.form << " is loaded as " << model->weights.FormName();
  });
}

// Elements of all tensors but the output matrix of a tied model, which is the embeddings, and the
// layer for multi-token prediction unless `with_mtp`. Of that layer, copies of the model's tensors
// do not count.
uint64_t ElementsOf(const Checkpoint& checkpoint, bool with_mtp) {
  const ModelConfig& config = checkpoint.config();
  const std::string mtp = fmt::format("{}{}.", config.names.layers, config.layers);
  uint64_t elements = 0;
  for (const std::string_view name : checkpoint.tensor_names()) {
    const bool copy =
        name.ends_with("embed_tokens.weight") || name.ends_with("shared_head.head.weight");
    if (name.starts_with(mtp) && (copy || !with_mtp)) continue;
    if (config.tied_embeddings && name == std::string(config.names.head) + ".weight") continue;
    uint64_t size = 1;
    for (const int64_t extent : checkpoint.Find(std::string(name))->info->shape) {
      size *= static_cast<uint64_t>(extent);
    }
    elements += size;
  }
  return elements;
}

TEST(WeightMeter, CountsTheElementsOfTheFilesWithAndWithoutThem) {
  ForEachGoldenModel([](const Checkpoint& checkpoint, const std::string&) {
    const uint64_t elements = WeightsOf(checkpoint.config()).elements();
    EXPECT_EQ(Measured(checkpoint).elements(), elements);
    // A tensor of codes does not have an element for each weight.
    if (checkpoint.config().quantisation.method != QuantisationConfig::Method::kNone) return;
    EXPECT_EQ(elements, ElementsOf(checkpoint, false));
    if (checkpoint.config().mtp_layers == 0) return;
    ModelConfig with = checkpoint.config();
    with.use_mtp = true;
    EXPECT_EQ(WeightsOf(with).elements(), ElementsOf(checkpoint, true));
  });
}

TEST(WeightMeter, DoesNotRoundCodesAgain) {
  const std::string path = SourceFolder() + "/tests/golden/logits/quantised_gptq";
  const auto checkpoint = Checkpoint::Open(path);
  ASSERT_TRUE(checkpoint.ok()) << checkpoint.status();
  const CheckpointTensors tensors(*checkpoint);
  const auto sizes = MeasureWeights(checkpoint->config(), FormsOf(WeightPolicy::kInt8), &tensors);
  EXPECT_THAT(Message(sizes.status()), HasSubstr("--weights=checkpoint"));
}

}  // namespace
}  // namespace penstock
