#include "model/weights/weights.h"

#include <gtest/gtest.h>

#include <cstring>
#include <map>

namespace penstock {
namespace {

// Tensors in memory, one byte off alignment.
class MapSource final : public TensorSource {
 public:
  absl::StatusOr<TensorView> Get(const std::string& name) const override {
    const auto found = tensors_.find(name);
    if (found == tensors_.end()) return NotFound("no such tensor");
    const Tensor& t = found->second;
    return TensorView{.dtype = t.dtype, .shape = t.shape, .bytes = std::span(t.bytes).subspan(1)};
  }

  bool Has(const std::string& name) const override { return tensors_.contains(name); }

  // Element i is first + i / 8, which bf16 and f16 hold exactly while it is small.
  void Add(const std::string& name, std::vector<int64_t> shape, TensorDtype dtype, float first) {
    Tensor tensor{.dtype = dtype, .shape = shape, .bytes = std::vector<std::byte>(1)};
    int64_t count = 1;
    for (const int64_t extent : shape) count *= extent;
    for (int64_t i = 0; i < count; ++i) {
      Append(tensor.bytes, dtype, first + static_cast<float>(i % 16) / 8);
    }
    tensors_[name] = tensor;
  }
  void Remove(const std::string& name) { tensors_.erase(name); }
  void Truncate(const std::string& name) { tensors_[name].bytes.pop_back(); }

 private:
  struct Tensor {
    TensorDtype dtype;
    std::vector<int64_t> shape;
    std::vector<std::byte> bytes;
  };

  static void Append(std::vector<std::byte>& bytes, TensorDtype dtype, float value) {
    uint32_t bits = std::bit_cast<uint32_t>(value);
    size_t size = 4;
    if (dtype == TensorDtype::kBf16) bits >>= 16, size = 2;
    if (dtype == TensorDtype::kF16) {
      const uint32_t exponent = (bits >> 23 & 0xff) - 112;
      bits = bits >> 31 << 15 | (value == 0 ? 0 : exponent << 10 | (bits >> 13 & 0x3ff));
      size = 2;
    }
    const auto* from = reinterpret_cast<const std::byte*>(&bits);
    bytes.insert(bytes.end(), from, from + size);
  }

  std::map<std::string, Tensor> tensors_;
};

ModelConfig Config() {
  ModelConfig config{.layers = 1,
                     .hidden = 6,
                     .intermediate = 20,
                     .heads = 2,
                     .kv_heads = 1,
                     .head_dim = 8,
                     .vocab = 9,
                     .max_position = 16};
  config.qkv_bias = config.mlp_bias = config.output_bias = true;
  config.qk_norm = QkNorm::kHead;
  return config;
}

MapSource Checkpoint() {
  MapSource source;
  const std::string layer = "model.layers.0.", attention = layer + "self_attn.";
  source.Add("model.embed_tokens.weight", {9, 6}, TensorDtype::kBf16, 1);
  source.Add("lm_head.weight", {9, 6}, TensorDtype::kF16, -3);
  source.Add("model.norm.weight", {6}, TensorDtype::kF32, 0);
  source.Add(layer + "input_layernorm.weight", {6}, TensorDtype::kF16, 0);
  source.Add(layer + "post_attention_layernorm.weight", {6}, TensorDtype::kBf16, 0);
  source.Add(attention + "q_proj.weight", {16, 6}, TensorDtype::kF32, 2);
  source.Add(attention + "k_proj.weight", {8, 6}, TensorDtype::kBf16, 4);
  source.Add(attention + "v_proj.weight", {8, 6}, TensorDtype::kBf16, 6);
  source.Add(attention + "q_proj.bias", {16}, TensorDtype::kF32, 1);
  source.Add(attention + "k_proj.bias", {8}, TensorDtype::kF32, 2);
  source.Add(attention + "v_proj.bias", {8}, TensorDtype::kF32, 3);
  source.Add(attention + "q_norm.weight", {8}, TensorDtype::kF32, 4);
  source.Add(attention + "k_norm.weight", {8}, TensorDtype::kF32, 5);
  source.Add(attention + "o_proj.weight", {6, 16}, TensorDtype::kBf16, 0);
  source.Add(attention + "o_proj.bias", {6}, TensorDtype::kBf16, 0);
  for (const std::string part : {"gate", "up"}) {
    const std::string projection = fmt::format("{}mlp.{}_proj", layer, part);
    const int first = part == "up" ? 8 : 5;
    source.Add(projection + ".weight", {20, 6}, TensorDtype::kBf16, first);
    source.Add(projection + ".bias", {20}, TensorDtype::kBf16, first);
  }
  source.Add(layer + "mlp.down_proj.weight", {6, 20}, TensorDtype::kBf16, 1);
  source.Add(layer + "mlp.down_proj.bias", {6}, TensorDtype::kBf16, 1);
  return source;
}

std::vector<float> Row(const WeightMatrix& matrix, int64_t row) {
  std::vector<float> values(static_cast<size_t>(matrix.inputs()));
  matrix.GetRow(row, values.data());
  return values;
}

float Expected(float first, int64_t i) { return first + static_cast<float>(i % 16) / 8; }

TEST(WeightsTest, PacksEveryTensorInItsPlace) {
  const auto weights = LoadWeights(Config(), Checkpoint());
  ASSERT_TRUE(weights.ok()) << Message(weights.status());
  const LayerWeights& layer = weights->layers[0];
  for (int64_t r = 0; r < 9; ++r) {
    for (int64_t i = 0; i < 6; ++i) {
      EXPECT_EQ(Row(weights->lm_head, r)[i], Expected(-3, r * 6 + i));
      EXPECT_EQ(ToFloat(weights->embedding.as<Bf16>()[r * 6 + i]), Expected(1, r * 6 + i));
    }
  }
  for (int64_t i = 0; i < 6; ++i) {
    EXPECT_EQ(Row(layer.qkv, 15)[i], Expected(2, 15 * 6 + i));
    EXPECT_EQ(Row(layer.qkv, 16)[i], Expected(4, i));
    EXPECT_EQ(Row(layer.qkv, 31)[i], Expected(6, 7 * 6 + i));
    // Rows 16..19 of gate and up are in the second group of 16, the rest of it zero.
    EXPECT_EQ(Row(layer.gate_up, 15)[i], Expected(5, 15 * 6 + i));
    EXPECT_EQ(Row(layer.gate_up, 16)[i], Expected(8, i));
    EXPECT_EQ(Row(layer.gate_up, 35)[i], Expected(5, 19 * 6 + i));
    EXPECT_EQ(Row(layer.gate_up, 51)[i], Expected(8, 19 * 6 + i));
    EXPECT_EQ(Row(layer.gate_up, 36)[i], 0);
  }
  EXPECT_EQ(layer.gate_up.outputs(), 64);
  EXPECT_EQ(layer.gate_up_bias[35], Expected(5, 19));
  EXPECT_EQ(layer.gate_up_bias[51], Expected(8, 19));
  EXPECT_EQ(layer.down.inputs(), 32);
  EXPECT_EQ(Row(layer.down, 5)[19], Expected(1, 5 * 20 + 19));
  EXPECT_EQ(Row(layer.down, 5)[20], 0);
  EXPECT_EQ(layer.qkv_bias[16], 2.0f);
  EXPECT_EQ(layer.qkv_bias[31], Expected(3, 7));
  EXPECT_EQ(layer.k_norm[1], Expected(5, 1));
}

TEST(WeightsTest, TiedEmbeddingsAreHeldOnce) {
  ModelConfig config = Config();
  config.tied_embeddings = true;
  MapSource source = Checkpoint();
  source.Remove("lm_head.weight");
  const auto weights = LoadWeights(config, source);
  ASSERT_TRUE(weights.ok()) << Message(weights.status());
  EXPECT_EQ(weights->embedding.bytes(), 0u);
  EXPECT_EQ(Row(weights->lm_head, 8)[5], Expected(1, 53));
}

TEST(WeightsTest, NamesTheTensorThatIsWrong) {
  MapSource source = Checkpoint();
  source.Remove("model.layers.0.mlp.up_proj.weight");
  absl::Status status = LoadWeights(Config(), source).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kNotFound);
  EXPECT_EQ(Message(status), "model.layers.0.mlp.up_proj.weight: no such tensor");

  source = Checkpoint();
  source.Add("model.norm.weight", {7}, TensorDtype::kF32, 0);
  status = LoadWeights(Config(), source).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(Message(status), "tensor model.norm.weight has shape [7], config.json implies [6]");

  source = Checkpoint();
  source.Truncate("model.norm.weight");
  status = LoadWeights(Config(), source).status();
  EXPECT_EQ(Message(status), "tensor model.norm.weight has 23 bytes, its shape needs 24");
}

TEST(WeightsTest, RefusesShapesTheKernelsCannotTake) {
  ModelConfig config = Config();
  config.head_dim = 12;
  EXPECT_EQ(Message(LoadWeights(config, Checkpoint()).status()),
            "head_dim is 12, it must be a multiple of 8");
  config = Config();
  config.kv_heads = 3;
  EXPECT_EQ(LoadWeights(config, Checkpoint()).status().code(), absl::StatusCode::kInvalidArgument);
}

TEST(WeightsTest, RandomWeightsHaveTheirDeviationAndSeed) {
  ModelConfig config = Config();
  config.vocab = 4000;
  const Weights a = RandomWeights(config, 1), b = RandomWeights(config, 1),
                c = RandomWeights(config, 2);
  double sum = 0;
  for (int64_t i = 0; i < 24000; ++i) {
    sum += std::pow(ToFloat(a.embedding.as<Bf16>()[i]), 2);
  }
  EXPECT_NEAR(std::sqrt(sum / 24000), 0.02, 0.001);
  EXPECT_EQ(Row(a.lm_head, 3999), Row(b.lm_head, 3999));
  EXPECT_NE(Row(a.lm_head, 3999), Row(c.lm_head, 3999));
}

}  // namespace
}  // namespace penstock
