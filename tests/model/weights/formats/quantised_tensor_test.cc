#include "model/weights/formats/quantised_tensor.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <bit>
#include <functional>

#include "lab/fake/temp_folder.h"
#include "model/load/load_model.h"
#include "tests/model/checkpoint/safetensors_writer.h"

namespace penstock {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using Json = nlohmann::json;

constexpr uint32_t kHalfOne = 0x3c003c00;  // two f16 of 1
constexpr int64_t kWidth = 64;

std::vector<uint32_t> Words(int64_t count, uint32_t word) {
  return std::vector<uint32_t>(static_cast<size_t>(count), word);
}

std::vector<uint32_t> Groups(int64_t inputs, int64_t size) {
  std::vector<uint32_t> groups;
  for (int64_t i = 0; i < inputs; ++i) groups.push_back(static_cast<uint32_t>(i / size));
  return groups;
}

// The tensors of one linear layer of 64 x 64 (or fewer outputs), codes 4 bits, groups of 32.
using Layer = std::function<std::vector<WrittenTensor>(const std::string& name, int64_t rows)>;

std::vector<WrittenTensor> Packed(const std::string& name, int64_t rows) {
  return {{name + ".weight_packed", {rows, 8}, "I32", 0, Words(rows * 8, 0x9a9a9a9a)},
          {name + ".weight_scale", {rows, 2}, "F16", 0, Words(rows, kHalfOne)},
          {name + ".weight_shape", {2}, "I64", 0, {static_cast<uint32_t>(rows), 0, 64, 0}}};
}

std::vector<WrittenTensor> Bytes(const std::string& name, int64_t rows) {
  return {{name + ".weight", {rows, kWidth}, "I8", 3},
          {name + ".weight_scale", {rows, 1}, "F16", 0, Words(rows / 2, kHalfOne)}};
}

// Blocks of 48 outputs and 32 inputs, whose scales are 1, 2, 3, ...; all numbers are 1.5.
std::vector<WrittenTensor> Fp8(const std::string& name, int64_t rows) {
  constexpr uint32_t kOneToFour[] = {0x3f800000, 0x40000000, 0x40400000, 0x40800000};
  const int64_t blocks = (rows + 47) / 48;
  return {{name + ".weight", {rows, kWidth}, "F8_E4M3", 0x3c},
          {name + ".weight_scale_inv",
           {blocks, 2},
           "F32",
           0,
           {std::begin(kOneToFour), std::begin(kOneToFour) + 2 * blocks}}};
}

// One scale of all, 1, and a scale of activations, which has no effect.
std::vector<WrittenTensor> Fp8Whole(const std::string& name, int64_t rows) {
  return {{name + ".weight", {rows, kWidth}, "F8_E4M3", 0x3c},
          {name + ".weight_scale", {1}, "F32", 0, {0x3f800000}},
          {name + ".input_scale", {1}, "F32", 0, {0x3f800000}}};
}

std::vector<WrittenTensor> Gptq(const std::string& name, int64_t rows) {
  return {{name + ".qweight", {8, rows}, "I32", 0, Words(rows * 8, 0x9a9a9a9a)},
          {name + ".qzeros", {2, rows / 8}, "I32", 0, Words(rows / 4, 0x77777777)},
          {name + ".scales", {2, rows}, "F16", 0, Words(rows, kHalfOne)},
          {name + ".g_idx", {kWidth}, "I32", 0, Groups(kWidth, 32)}};
}

std::vector<WrittenTensor> Awq(const std::string& name, int64_t rows) {
  return {{name + ".qweight", {kWidth, rows / 8}, "I32", 0, Words(rows * 8, 0x76543210)},
          {name + ".qzeros", {2, rows / 8}, "I32", 0, Words(rows / 4, 0x11111111)},
          {name + ".scales", {2, rows}, "F16", 0, Words(rows, kHalfOne)}};
}

Json Config(const Json& quantisation) {
  return {{"architectures", {"LlamaForCausalLM"}},
          {"hidden_size", 64},
          {"intermediate_size", 64},
          {"num_hidden_layers", 1},
          {"num_attention_heads", 2},
          {"num_key_value_heads", 1},
          {"vocab_size", 32},
          {"max_position_embeddings", 64},
          {"quantization_config", quantisation}};
}

Json CompressedConfig() {
  const Json weights = {
      {"num_bits", 4}, {"type", "int"}, {"strategy", "group"}, {"group_size", 32}};
  return {{"quant_method", "compressed-tensors"},
          {"format", "mixed-precision"},
          {"config_groups", {{"group_0", {{"format", "pack-quantized"}, {"weights", weights}}}}}};
}
Json Fp8Config() { return {{"quant_method", "fp8"}, {"weight_block_size", {48, 32}}}; }
Json FloatConfig() {
  const Json weights = {{"num_bits", 8}, {"type", "float"}, {"strategy", "tensor"}};
  return {{"quant_method", "compressed-tensors"},
          {"format", "float-quantized"},
          {"config_groups", {{"group_0", {{"weights", weights}}}}}};
}
Json GptqConfig() { return {{"quant_method", "gptq"}, {"bits", 4}, {"group_size", 32}}; }
Json AwqConfig() { return {{"quant_method", "awq"}, {"bits", 4}, {"group_size", 32}}; }

std::vector<WrittenTensor> Tensors(const Layer& layer) {
  const std::string first = "model.layers.0.";
  std::vector<WrittenTensor> tensors = {{"lm_head.weight", {32, kWidth}},
                                        {"model.embed_tokens.weight", {32, kWidth}},
                                        {"model.norm.weight", {kWidth}},
                                        {first + "input_layernorm.weight", {kWidth}},
                                        {first + "post_attention_layernorm.weight", {kWidth}}};
  const std::pair<const char*, int64_t> matrices[] = {
      {"self_attn.q_proj", 64}, {"self_attn.k_proj", 32}, {"self_attn.v_proj", 32},
      {"self_attn.o_proj", 64}, {"mlp.gate_proj", 64},    {"mlp.up_proj", 64},
      {"mlp.down_proj", 64}};
  for (const auto& [name, rows] : matrices) {
    for (const WrittenTensor& tensor : layer(first + name, rows)) tensors.push_back(tensor);
  }
  return tensors;
}

absl::StatusOr<LoadedModel> Load(const Json& quantisation,
                                 const std::vector<WrittenTensor>& tensors,
                                 WeightPolicy policy = WeightPolicy::kCheckpoint) {
  const TempFolder directory;
  Json config = Config(quantisation);
  if (quantisation.is_null()) config.erase("quantization_config");
  directory.Write("config.json", config.dump());
  directory.Write("model.safetensors", SafetensorsBytes(tensors));
  return LoadModel(directory.path(), {.policy = policy});
}

// The tensors with one of them, named by its end, changed.
std::vector<WrittenTensor> With(std::vector<WrittenTensor> tensors, std::string_view end,
                                const std::function<void(WrittenTensor&)>& change) {
  int changed = 0;
  for (WrittenTensor& tensor : tensors) {
    if (!tensor.name.ends_with(end)) continue;
    change(tensor);
    ++changed;
  }
  EXPECT_GE(changed, 1) << end;
  return tensors;
}

std::vector<float> RowOf(const WeightMatrix& matrix, int64_t row) {
  std::vector<float> values(static_cast<size_t>(matrix.inputs()));
  matrix.GetRow(row, values.data());
  return values;
}

TEST(QuantisedTensorTest, ReadsEveryFormat) {
  const auto packed = Load(CompressedConfig(), Tensors(Packed));
  ASSERT_TRUE(packed.ok()) << Message(packed.status());
  EXPECT_EQ(packed->weights.FormName(), "int4 g32, lm_head bf16, activations int16");
  const auto gptq = Load(GptqConfig(), Tensors(Gptq));
  ASSERT_TRUE(gptq.ok()) << Message(gptq.status());
  for (const LoadedModel* model : {&*packed, &*gptq}) {
    // Codes 10, 9, 10, ... less the zero point of 8.
    const auto row = RowOf(model->weights.layers[0].down, 63);
    EXPECT_EQ(row[0], 2.0f);
    EXPECT_EQ(row[1], 1.0f);
    EXPECT_EQ(row[63], 1.0f);
    EXPECT_FALSE(model->weights.layers[0].down.quantised()[0].format().zeros);
  }
  const auto bytes = Load(CompressedConfig(), Tensors(Bytes));
  ASSERT_TRUE(bytes.ok()) << Message(bytes.status());
  EXPECT_EQ(bytes->weights.FormName(), "int8 g64, lm_head bf16, activations int16");
  EXPECT_EQ(RowOf(bytes->weights.layers[0].qkv, 127)[63], 3.0f);
  const auto awq = Load(AwqConfig(), Tensors(Awq));
  ASSERT_TRUE(awq.ok()) << Message(awq.status());
  EXPECT_EQ(awq->weights.FormName(), "int4 g32 asymmetric, lm_head bf16, activations int16");
  // AutoAWQ's order: outputs 0 .. 7 of the word 0x76543210 are 0, 4, 1, 5, 2, 6, 3, 7.
  const float want[] = {-1, 3, 0, 4, 1, 5, 2, 6};
  for (int64_t row = 0; row < 8; ++row) {
    EXPECT_EQ(RowOf(awq->weights.layers[0].down, row)[5], want[row]);
  }
}

// gpt-oss of one layer and two experts, whose only numbers but zero are in the blocks of gate_up of
// the second. Rows have 16 bytes of 0x72, then 16 of 0xf9; scales are `scales`.
absl::StatusOr<LoadedModel> LoadMxfp4(uint32_t scales, const Json& changes = Json::object()) {
  Json config = Config({{"quant_method", "mxfp4"}});
  config.update({{"architectures", {"GptOssForCausalLM"}},
                 {"head_dim", 32},
                 {"sliding_window", 8},
                 {"num_local_experts", 2},
                 {"num_experts_per_tok", 1},
                 {"rope_scaling", {{"rope_type", "default"}}}});
  config.update(changes);
  std::vector<uint32_t> blocks = Words(2 * 128 * 8, 0x72727272);
  for (size_t i = 0; i < blocks.size(); ++i) {
    if (i % 8 >= 4) blocks[i] = 0xf9f9f9f9;
  }
  const std::string first = "model.layers.0.", experts = first + "mlp.experts.";
  std::vector<WrittenTensor> tensors = {
      {"lm_head.weight", {32, kWidth}},
      {"model.embed_tokens.weight", {32, kWidth}},
      {"model.norm.weight", {kWidth}},
      {first + "input_layernorm.weight", {kWidth}},
      {first + "post_attention_layernorm.weight", {kWidth}},
      {first + "self_attn.sinks", {2}},
      {first + "mlp.router.weight", {2, kWidth}},
      {first + "mlp.router.bias", {2}},
      {experts + "gate_up_proj_blocks", {2, 128, 2, 16}, "U8", 0, blocks},
      {experts + "gate_up_proj_scales", {2, 128, 2}, "U8", 0, Words(128, scales)},
      {experts + "gate_up_proj_bias", {2, 128}, "F32", 0, Groups(256, 1)},
      {experts + "down_proj_blocks", {2, 64, 2, 16}, "U8", 0},
      {experts + "down_proj_scales", {2, 64, 2}, "U8", 127},
      {experts + "down_proj_bias", {2, 64}}};
  const std::pair<const char*, int64_t> matrices[] = {
      {"q_proj", 64}, {"k_proj", 32}, {"v_proj", 32}, {"o_proj", 64}};
  for (const auto& [name, rows] : matrices) {
    tensors.push_back({first + "self_attn." + name + ".weight", {rows, kWidth}});
    tensors.push_back({first + "self_attn." + name + ".bias", {rows}});
  }
  const TempFolder directory;
  directory.Write("config.json", config.dump());
  directory.Write("model.safetensors", SafetensorsBytes(tensors));
  return LoadModel(directory.path());
}

// The low half of a byte is the earlier input: 0x72 is 1 and 6, and 0xf9 is -0.5 and -6.
TEST(QuantisedTensorTest, ReadsMxfp4OfExperts) {
  const auto model = LoadMxfp4(0x807f807f);  // factors 1 and 2 in turn
  ASSERT_TRUE(model.ok()) << Message(model.status());
  EXPECT_EQ(model->weights.FormName(), "bf16 and fp4 g32, lm_head bf16, activations int16");
  for (const GatedWeights& expert : model->weights.layers[0].experts->experts) {
    const auto row = RowOf(expert.gate_up, 37);
    EXPECT_EQ(row[0], 1.0f);
    EXPECT_EQ(row[1], 6.0f);
    EXPECT_EQ(row[31], 6.0f);
    EXPECT_EQ(row[32], -1.0f);
    EXPECT_EQ(row[63], -12.0f);
    EXPECT_EQ(RowOf(expert.down, 63)[63], 0.0f);
  }
  // Gates and ups alternate in the file, and 16 gates and 16 ups in memory.
  const auto& bias = model->weights.layers[0].experts->experts[0].gate_up_bias;
  ASSERT_EQ(bias.size(), 128u);
  EXPECT_EQ(std::bit_cast<uint32_t>(bias[1]), 2u);
  EXPECT_EQ(std::bit_cast<uint32_t>(bias[16]), 1u);
  EXPECT_EQ(std::bit_cast<uint32_t>(bias[33]), 34u);
}

TEST(QuantisedTensorTest, RefusesMxfp4ThatItCannotRead) {
  EXPECT_THAT(Message(LoadMxfp4(0xff7f7f7f).status()),
              HasSubstr("model.layers.0.mlp.experts.0.gate_up_proj.scales: a scale of output 1 is "
                        "NaN"));
  EXPECT_THAT(Message(LoadMxfp4(0x7f7f7f7f, {{"quantization_config", GptqConfig()}}).status()),
              AllOf(HasSubstr("gate_up_proj.blocks is quantised in the way of mxfp4"),
                    HasSubstr("quant_method in config.json is gptq")));
  EXPECT_THAT(Message(LoadMxfp4(0x7f7f7f7f, {{"intermediate_size", 32}}).status()),
              HasSubstr("gate_up_proj.scales has shape [128, 2], config.json implies [64, 2]"));
}

TEST(QuantisedTensorTest, ReadsFp8WithTheScalesOfItsBlocks) {
  const auto blocks = Load(Fp8Config(), Tensors(Fp8));
  ASSERT_TRUE(blocks.ok()) << Message(blocks.status());
  EXPECT_EQ(blocks->weights.FormName(), "fp8 g32, lm_head bf16");
  const WeightMatrix& down = blocks->weights.layers[0].down;
  EXPECT_EQ(RowOf(down, 47)[31], 1.5f);
  EXPECT_EQ(RowOf(down, 47)[32], 3.0f);
  EXPECT_EQ(RowOf(down, 48)[31], 4.5f);
  EXPECT_EQ(RowOf(down, 63)[63], 6.0f);
  // Keys are a matrix of their own in the file, so that their blocks start again.
  EXPECT_EQ(RowOf(blocks->weights.layers[0].qkv, 64)[0], 1.5f);
  const auto whole = Load(FloatConfig(), Tensors(Fp8Whole));
  ASSERT_TRUE(whole.ok()) << Message(whole.status());
  EXPECT_EQ(RowOf(whole->weights.layers[0].qkv, 127)[63], 1.5f);
  const auto rows = Load(
      FloatConfig(), With(Tensors(Fp8Whole), "down_proj.weight_scale", [](WrittenTensor& tensor) {
        tensor.shape = {64, 1};
        tensor.words = Words(64, 0x40000000);
      }));
  ASSERT_TRUE(rows.ok()) << Message(rows.status());
  EXPECT_EQ(RowOf(rows->weights.layers[0].down, 63)[0], 3.0f);
}

TEST(QuantisedTensorTest, RefusesFp8ThatItCannotRead) {
  const auto error = [](const Json& config, const std::vector<WrittenTensor>& tensors) {
    return std::string(Message(Load(config, tensors).status()));
  };
  EXPECT_THAT(error(Fp8Config(), With(Tensors(Fp8), "down_proj.weight",
                                      [](WrittenTensor& tensor) { tensor.fill = 0x7f; })),
              HasSubstr("down_proj.weight: input 0 of output 0 is NaN"));
  EXPECT_THAT(error(Fp8Config(), With(Tensors(Fp8), "down_proj.weight",
                                      [](WrittenTensor& tensor) { tensor.dtype = "F8_E5M2"; })),
              HasSubstr("dtype is F8_E5M2"));
  EXPECT_THAT(error(Fp8Config(), With(Tensors(Fp8), "down_proj.weight_scale_inv",
                                      [](WrittenTensor& tensor) {
                                        tensor.shape = {1, 4};
                                      })),
              HasSubstr("down_proj.weight_scale_inv has shape [1, 4], config.json implies [2, 2]"));
  EXPECT_THAT(error(CompressedConfig(), Tensors(Fp8Whole)),
              HasSubstr("dtype is F8_E4M3, allowed is I8"));
  EXPECT_THAT(
      error(FloatConfig(), With(Tensors(Fp8Whole), "down_proj.weight_scale",
                                [](WrittenTensor& tensor) { tensor.words = {0x7f800000}; })),
      HasSubstr("it must be finite"));
  Json narrow = Fp8Config();
  narrow["weight_block_size"] = {48, 48};
  EXPECT_THAT(error(narrow, Tensors(Fp8)), HasSubstr("has groups of 48 inputs"));
}

TEST(QuantisedTensorTest, GptqZerosAreLessByOneUnlessTheFileSaysOtherwise) {
  Json v2 = GptqConfig();
  v2["checkpoint_format"] = "gptq_v2";
  const auto as_is = Load(v2, Tensors(Gptq));
  ASSERT_TRUE(as_is.ok());
  EXPECT_EQ(RowOf(as_is->weights.layers[0].down, 0)[0], 3.0f);
  const auto unsaid = Load(GptqConfig(), With(Tensors(Gptq), "qzeros", [](WrittenTensor& tensor) {
                             for (uint32_t& word : tensor.words) word = 0x88888888;
                           }));
  ASSERT_TRUE(unsaid.ok());
  EXPECT_EQ(RowOf(unsaid->weights.layers[0].down, 0)[0], 2.0f);
  // A zero point of 0 is stored as -1, and must not become 16.
  Json v1 = GptqConfig();
  v1["checkpoint_format"] = "gptq";
  const auto masked = Load(v1, With(Tensors(Gptq), "qzeros", [](WrittenTensor& tensor) {
                             for (uint32_t& word : tensor.words) word = 0xffffffff;
                           }));
  ASSERT_TRUE(masked.ok());
  EXPECT_EQ(RowOf(masked->weights.layers[0].down, 0)[0], 10.0f);
}

TEST(QuantisedTensorTest, ActOrderPutsInputsBack) {
  auto order = Groups(kWidth, 32);
  for (uint32_t& group : order) group = 1 - group;  // the second half is group 0
  const auto tensors =
      With(With(Tensors(Gptq), "g_idx", [&](WrittenTensor& tensor) { tensor.words = order; }),
           "qweight", [](WrittenTensor& tensor) {
             for (size_t i = 0; i < tensor.words.size() / 8; ++i) {
               tensor.words[i] = 0x00000001;  // inputs 0 .. 7
             }
           });
  const auto model = Load(GptqConfig(), tensors);
  ASSERT_TRUE(model.ok()) << Message(model.status());
  const WeightMatrix& down = model->weights.layers[0].down;
  EXPECT_EQ(down.quantised()[0].order()[0], 32);
  EXPECT_EQ(RowOf(down, 0)[0], -7.0f);
  EXPECT_EQ(RowOf(down, 0)[1], -8.0f);
  EXPECT_EQ(RowOf(down, 0)[8], 2.0f);
}

struct Malformed {
  std::string name;
  Json config;
  Layer layer;
  std::string end;  // of the tensor that is changed
  std::function<void(WrittenTensor&)> change;
  std::vector<std::string> error;
};

void Shape(WrittenTensor& tensor, std::vector<int64_t> shape) {
  tensor.shape = std::move(shape);
  tensor.words.clear();
}

class MalformedTensorTest : public testing::TestWithParam<Malformed> {};

TEST_P(MalformedTensorTest, IsNamed) {
  const Malformed& tested = GetParam();
  const auto model = Load(tested.config, With(Tensors(tested.layer), tested.end, tested.change));
  ASSERT_FALSE(model.ok());
  for (const std::string& part : tested.error) {
    EXPECT_THAT(Message(model.status()), HasSubstr(part));
  }
}

INSTANTIATE_TEST_SUITE_P(
    Tensors, MalformedTensorTest,
    testing::Values(
        Malformed{"packed_words",
                  CompressedConfig(),
                  Packed,
                  "q_proj.weight_packed",
                  [](WrittenTensor& tensor) {
                    Shape(tensor, {64, 7});
                  },
                  {"q_proj.weight_packed has 7 words for 64 values"}},
        Malformed{"packed_rows",
                  CompressedConfig(),
                  Packed,
                  "q_proj.weight_packed",
                  [](WrittenTensor& tensor) {
                    Shape(tensor, {63, 8});
                  },
                  {"q_proj.weight_packed has shape [63, 8], config.json implies [64, 8]"}},
        Malformed{"packed_dtype",
                  CompressedConfig(),
                  Packed,
                  "q_proj.weight_packed",
                  [](WrittenTensor& tensor) { tensor.dtype = "F32"; },
                  {"q_proj.weight_packed: dtype is F32, allowed is I32"}},
        Malformed{"shape",
                  CompressedConfig(),
                  Packed,
                  "q_proj.weight_shape",
                  [](WrittenTensor& tensor) {
                    tensor.words = {64, 0, 63, 0};
                  },
                  {"q_proj.weight_shape says [64, 63], config.json implies [64, 64]"}},
        Malformed{"shape_high",
                  CompressedConfig(),
                  Packed,
                  "q_proj.weight_shape",
                  [](WrittenTensor& tensor) {
                    tensor.words = {64, 1, 64, 0};
                  },
                  {"q_proj.weight_shape says"}},
        Malformed{"no_scale",
                  CompressedConfig(),
                  Packed,
                  "q_proj.weight_scale",
                  [](WrittenTensor& tensor) { tensor.name += "s"; },
                  {"weight_scale"}},
        Malformed{"scale_shape",
                  CompressedConfig(),
                  Packed,
                  "q_proj.weight_scale",
                  [](WrittenTensor& tensor) {
                    Shape(tensor, {64, 3});
                  },
                  {"q_proj.weight_scale has shape [64, 3], config.json implies [64, 2]"}},
        Malformed{"scale_nan",
                  CompressedConfig(),
                  Packed,
                  "q_proj.weight_scale",
                  [](WrittenTensor& tensor) { tensor.words[5] = 0x7e003c00; },
                  {"q_proj.weight_scale: the scale of output 5 is nan, it must be finite"}},
        Malformed{"scale_infinite",
                  GptqConfig(),
                  Gptq,
                  "q_proj.scales",
                  [](WrittenTensor& tensor) { tensor.words[0] = 0x7c003c00; },
                  {"q_proj.scales: the scale"}},
        Malformed{"other_method",
                  AwqConfig(),
                  Packed,
                  "q_proj.weight_shape",
                  [](WrittenTensor&) {},
                  {"q_proj.weight_packed is quantised in the way of compressed-tensors",
                   "quantization_config.quant_method in config.json is awq"}},
        Malformed{"no_config",
                  nullptr,
                  Gptq,
                  "q_proj.scales",
                  [](WrittenTensor&) {},
                  {"q_proj.qweight is quantised in the way of GPTQ or AWQ",
                   "quant_method in config.json is none"}},
        Malformed{"bytes_that_are_floats",
                  CompressedConfig(),
                  Packed,
                  "k_proj.weight_packed",
                  [](WrittenTensor& tensor) {
                    tensor = {"model.layers.0.self_attn.k_proj.weight", {32, 64}};
                  },
                  {"k_proj.weight: dtype is F32, allowed is I8"}},
        Malformed{"qweight",
                  GptqConfig(),
                  Gptq,
                  "q_proj.qweight",
                  [](WrittenTensor& tensor) {
                    Shape(tensor, {8, 63});
                  },
                  {"q_proj.qweight has shape [8, 63], config.json implies [8, 64]"}},
        Malformed{"qzeros",
                  GptqConfig(),
                  Gptq,
                  "q_proj.qzeros",
                  [](WrittenTensor& tensor) {
                    Shape(tensor, {2, 9});
                  },
                  {"q_proj.qzeros has shape [2, 9], config.json implies [2, 8]"}},
        Malformed{"no_qzeros",
                  GptqConfig(),
                  Gptq,
                  "q_proj.qzeros",
                  [](WrittenTensor& tensor) { tensor.name += "x"; },
                  {"q_proj.qzeros"}},
        Malformed{"group_index",
                  GptqConfig(),
                  Gptq,
                  "q_proj.g_idx",
                  [](WrittenTensor& tensor) { tensor.words[0] = 1; },
                  {"q_proj.g_idx puts input", "every group but the last must have 32 inputs"}},
        Malformed{"group_index_negative",
                  GptqConfig(),
                  Gptq,
                  "q_proj.g_idx",
                  [](WrittenTensor& tensor) { tensor.words[0] = 0xffffffff; },
                  {"q_proj.g_idx puts input"}},
        Malformed{"orders_differ",
                  GptqConfig(),
                  Gptq,
                  "q_proj.g_idx",
                  [](WrittenTensor& tensor) {
                    for (uint32_t& group : tensor.words) group = 1 - group;
                  },
                  {"q_proj and model.layers.0.self_attn.k_proj have their inputs in different"}},
        Malformed{"bias",
                  GptqConfig(),
                  Gptq,
                  "up_proj.g_idx",
                  [](WrittenTensor& tensor) {
                    tensor = {"model.layers.0.mlp.up_proj.bias", {64}, "F16", 1};
                  },
                  {"up_proj.bias"}},
        Malformed{"awq_words",
                  AwqConfig(),
                  Awq,
                  "q_proj.qweight",
                  [](WrittenTensor& tensor) {
                    Shape(tensor, {64, 7});
                  },
                  {"q_proj.qweight has shape [64, 7], config.json implies [64, 8]"}}),
    [](const auto& tested) { return tested.param.name; });

TEST(QuantisedTensorTest, APartInSixteenBitsIsNamed) {
  auto tensors = Tensors(Packed);
  std::erase_if(tensors, [](const WrittenTensor& tensor) {
    return tensor.name.find("k_proj") != std::string::npos;
  });
  tensors.push_back({"model.layers.0.self_attn.k_proj.weight", {32, 64}});
  EXPECT_THAT(Message(Load(CompressedConfig(), tensors).status()),
              AllOf(HasSubstr("2 of the 3 parts of one product"), HasSubstr("q_proj")));
}

TEST(QuantisedTensorTest, BiasesOfZerosHaveNoEffect) {
  auto tensors = Tensors(Gptq);
  tensors.push_back({"model.layers.0.mlp.up_proj.bias", {64}, "F16"});
  EXPECT_TRUE(Load(GptqConfig(), tensors).ok());
}

TEST(QuantisedTensorTest, RefusesGroupsThatNoKernelHas) {
  Json config = GptqConfig();
  config["group_size"] = 48;
  EXPECT_THAT(Message(Load(config, Tensors(Gptq)).status()),
              HasSubstr("quantization_config.group_size has groups of 48 inputs"));
}

TEST(QuantisedTensorTest, WhatIsQuantisedIsNotRoundedAgain) {
  EXPECT_THAT(
      Message(Load(GptqConfig(), Tensors(Gptq), WeightPolicy::kInt8).status()),
      AllOf(HasSubstr("q_proj.qweight is quantised already"), HasSubstr("weights=checkpoint")));
}

std::vector<WrittenTensor> Floats(const std::string& name, int64_t rows) {
  return {{name + ".weight", {rows, kWidth}, "F16", 0, Words(rows * kWidth / 2, kHalfOne)}};
}

// KV of one numeric policy must never be taken for that of another.
TEST(QuantisedTensorTest, EveryPolicyHasItsOwnFingerprint) {
  const auto plain = Load(nullptr, Tensors(Floats));
  const auto int8 = Load(nullptr, Tensors(Floats), WeightPolicy::kInt8);
  const auto int4 = Load(nullptr, Tensors(Floats), WeightPolicy::kInt4);
  ASSERT_TRUE(plain.ok() && int8.ok() && int4.ok());
  EXPECT_EQ(plain->weights.FormName(), "bf16");
  EXPECT_EQ(int4->weights.FormName(), "int4 g32, lm_head int8 g128, activations int16");
  EXPECT_NE(plain->fingerprint, int8->fingerprint);
  EXPECT_NE(plain->fingerprint, int4->fingerprint);
  EXPECT_NE(int8->fingerprint, int4->fingerprint);
  EXPECT_EQ(int4->fingerprint, Load(nullptr, Tensors(Floats), WeightPolicy::kInt4)->fingerprint);
  EXPECT_EQ(RowOf(int4->weights.layers[0].down, 3), std::vector<float>(64, 1.0f));
  EXPECT_LT(int4->weights.bytes(), int8->weights.bytes());
}

TEST(QuantisedTensorTest, RoundingNamesTheTensorThatItCannotHold) {
  const auto tensors = With(Tensors(Floats), "gate_proj.weight",
                            [](WrittenTensor& tensor) { tensor.words[70] = 0x7c000000; });
  EXPECT_THAT(Message(Load(nullptr, tensors, WeightPolicy::kInt4).status()),
              HasSubstr("mlp.gate_proj.weight: row 2 has a value that is not finite"));
}

}  // namespace
}  // namespace penstock
