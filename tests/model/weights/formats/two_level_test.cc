// Weights of GGUF's K-types, whose scales have two levels.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <random>

#include "kernels/f16.h"
#include "lab/fake/temp_folder.h"
#include "model/load/load_model.h"
#include "model/weights/formats/block_types.h"
#include "tests/model/gguf/gguf_writer.h"

namespace penstock {
namespace {

using ::testing::HasSubstr;

constexpr int64_t kWidth = 256;

// The tensors of one layer, and the types that differ from Q4_K.
struct Types {
  std::string k = "Q4_K", gate = "Q4_K", up = "Q4_K", down = "Q6_K";
};
using ChangeBlocks = std::function<void(const std::string& name, std::string& data)>;

// Blocks of random bytes with f16 factors of 1 to 2 at `factors`.
std::string RandomBlocks(const GgmlType& type, int64_t rows, std::initializer_list<size_t> factors,
                         uint64_t seed) {
  std::mt19937_64 random(seed);
  std::string data(static_cast<size_t>(rows * kWidth / type.block_elements * type.block_bytes), 0);
  for (char& byte : data) byte = static_cast<char>(random());
  for (size_t block = 0; block < data.size(); block += static_cast<size_t>(type.block_bytes)) {
    for (const size_t at : factors) data[block + at + 1] = 0x3c;
  }
  return data;
}

void AddBlocks(const std::string& name, const std::string& type, int64_t rows,
               const ChangeBlocks& change, GgufWriter& writer) {
  const GgmlType& ggml = *FindGgmlType(type);
  const uint64_t seed = name.size() * 256 + static_cast<uint8_t>(name[name.size() - 1]);
  std::string data = type == "Q6_K"     ? RandomBlocks(ggml, rows, {208}, seed)
                     : type == "IQ4_XS" ? RandomBlocks(ggml, rows, {0}, seed)
                                        : RandomBlocks(ggml, rows, {0, 2}, seed);
  if (change) change(name, data);
  writer.TensorData(name + ".weight", ggml.id, {static_cast<uint64_t>(rows), kWidth}, data);
}

absl::StatusOr<LoadedModel> Load(const Types& types, const ChangeBlocks& change = nullptr) {
  GgufWriter writer;
  writer.Text("general.architecture", "llama")
      .U32("llama.block_count", 1)
      .U32("llama.context_length", 64)
      .U32("llama.embedding_length", kWidth)
      .U32("llama.feed_forward_length", kWidth)
      .U32("llama.attention.head_count", 4)
      .U32("llama.attention.head_count_kv", 2)
      .F32("llama.attention.layer_norm_rms_epsilon", 1e-5f)
      .F32("llama.rope.freq_base", 10000)
      .U32("tokenizer.ggml.eos_token_id", 7)
      .Tensor("token_embd.weight", "F16", {32, kWidth})
      .Tensor("output_norm.weight", "F32", {kWidth})
      .Tensor("blk.0.attn_norm.weight", "F32", {kWidth})
      .Tensor("blk.0.ffn_norm.weight", "F32", {kWidth});
  const std::string layer = "blk.0.";
  AddBlocks(layer + "attn_q", "Q4_K", 256, change, writer);
  AddBlocks(layer + "attn_k", types.k, 128, change, writer);
  AddBlocks(layer + "attn_v", "Q4_K", 128, change, writer);
  AddBlocks(layer + "attn_output", "IQ4_XS", 256, change, writer);
  AddBlocks(layer + "ffn_gate", types.gate, 256, change, writer);
  AddBlocks(layer + "ffn_up", types.up, 256, change, writer);
  AddBlocks(layer + "ffn_down", types.down, 256, change, writer);
  const TempFolder folder;
  folder.Write("m.gguf", writer.Bytes());
  return LoadModel(folder.path() + "/m.gguf");
}

const QuantisedFormat& FormatOf(const WeightMatrix& matrix) {
  EXPECT_EQ(matrix.quantised().size(), 1u);
  return matrix.quantised()[0].format();
}

double BitsOf(const WeightMatrix& matrix) {
  const QuantisedMatrix& all = matrix.quantised()[0];
  return 8 * static_cast<double>(all.panels() * all.panel_bytes()) /
         static_cast<double>(all.outputs() * all.inputs());
}

TEST(TwoLevelTest, AreLoadedAsTheyAre) {
  const auto model = Load({.down = "Q5_K"});
  ASSERT_TRUE(model.ok()) << model.status();
  const LayerWeights& layer = model->weights.layers[0];
  for (const WeightMatrix* matrix :
       {&layer.qkv, &layer.attention_output, &layer.gate_up, &layer.down}) {
    EXPECT_TRUE(FormatOf(*matrix).two_level());
  }
  EXPECT_EQ(BitsOf(layer.qkv), 4.625);
  EXPECT_EQ(BitsOf(layer.attention_output), 4.3125);
  EXPECT_EQ(BitsOf(layer.down), 5.625);
  const auto six = Load({});
  ASSERT_TRUE(six.ok()) << six.status();
  EXPECT_EQ(BitsOf(six->weights.layers[0].down), 6.5625);
}

// A product of Q4_K and Q4_1 has f32 scales, with which weights are the same.
TEST(TwoLevelTest, BesideOneLevelTheyAreMultiplied) {
  const auto alone = Load({}), mixed = Load({.k = "Q4_1", .up = "Q4_1"});
  ASSERT_TRUE(alone.ok() && mixed.ok()) << alone.status() << mixed.status();
  const LayerWeights &a = alone->weights.layers[0], &b = mixed->weights.layers[0];
  EXPECT_TRUE(FormatOf(a.qkv).two_level());
  EXPECT_EQ(FormatOf(b.qkv).scale, ScaleType::kF32);
  EXPECT_EQ(FormatOf(b.gate_up).scale, ScaleType::kF32);
  std::vector<float> want(kWidth), found(kWidth);
  const auto expect_equal = [&](const WeightMatrix& one, const WeightMatrix& two, int64_t row) {
    one.GetRow(row, want.data());
    two.GetRow(row, found.data());
    EXPECT_EQ(want, found) << row;
    const QuantisedRowCopy scales = one.quantised()[0].CopyRow(row);
    EXPECT_EQ(scales.scales, two.quantised()[0].CopyRow(row).scales) << row;
    EXPECT_EQ(scales.offsets, two.quantised()[0].CopyRow(row).offsets) << row;
  };
  for (int64_t row = 0; row < 256; ++row) expect_equal(a.qkv, b.qkv, row);
  for (int64_t row = 384; row < 512; ++row) expect_equal(a.qkv, b.qkv, row);
  for (int64_t row = 0; row < 16; ++row) expect_equal(a.gate_up, b.gate_up, row);  // gates
}

// Gate and up are one matrix, whose codes have the bits of the wider type. Keys are a matrix of
// their own between the two of queries and values.
TEST(TwoLevelTest, BesideMoreBitsTheyAreWidened) {
  const auto expect_widened = [](const Types& alone, const Types& mixed, int bits) {
    const auto a = Load(alone), b = Load(mixed);
    ASSERT_TRUE(a.ok() && b.ok()) << a.status() << b.status();
    const WeightMatrix &narrow = a->weights.layers[0].gate_up, &wide = b->weights.layers[0].gate_up;
    EXPECT_LT(FormatOf(narrow).bits, bits);
    EXPECT_EQ(FormatOf(wide).bits, bits);
    std::vector<float> want(kWidth), found(kWidth);
    for (int64_t row = 0; row < 16; ++row) {  // gates
      narrow.GetRow(row, want.data());
      wide.GetRow(row, found.data());
      EXPECT_EQ(want, found) << row;
    }
  };
  expect_widened({}, {.up = "Q5_1"}, 5);
  expect_widened({.gate = "Q5_0", .up = "Q5_0"}, {.gate = "Q5_0", .up = "Q8_0"}, 8);
  expect_widened({.gate = "Q4_0", .up = "Q4_0"}, {.gate = "Q4_0", .up = "Q5_0"}, 5);
  const auto keys = Load({.k = "Q5_1"});
  ASSERT_TRUE(keys.ok()) << keys.status();
  const auto& qkv = keys->weights.layers[0].qkv.quantised();
  ASSERT_EQ(qkv.size(), 3u);
  EXPECT_EQ(qkv[0].format().bits, 4);
  EXPECT_EQ(qkv[1].format().bits, 5);
}

TEST(TwoLevelTest, FactorsMustBeFinite) {
  constexpr size_t kBlock = 144;
  const auto with = [](size_t factor, char high) {
    return Load({}, [=](const std::string& name, std::string& data) {
      if (name == "blk.0.ffn_gate") data[5 * kBlock + factor + 1] = high;
    });
  };
  EXPECT_TRUE(with(0, 0x7b).ok());
  for (const size_t factor : {0, 2}) {
    EXPECT_THAT(std::string(with(factor, 0x7c).status().message()),
                HasSubstr("mlp.gate_proj.weight: a scale of output 5 is not finite"));
  }
}

}  // namespace
}  // namespace penstock
