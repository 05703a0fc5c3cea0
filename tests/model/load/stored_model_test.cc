// A model whose matrices stay in its files, beside the same model in memory.

#include "model/load/stored_model.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <filesystem>
#include <fstream>

#include "lab/fake/temp_folder.h"
#include "model/load/load_model.h"
#include "tests/model/checkpoint/safetensors_writer.h"
#include "tests/support/environment.h"

namespace penstock {
namespace {

constexpr int kThreads = 3;

// The checkpoints of all families and formats.
std::vector<std::string> GoldenModels() {
  std::vector<std::string> models;
  for (const auto& entry :
       std::filesystem::directory_iterator(SourceFolder() + "/tests/golden/logits")) {
    if (!entry.is_directory()) continue;
    const std::string file = entry.path() / "model.gguf";
    models.push_back(std::filesystem::exists(file) ? file : entry.path().string());
  }
  std::ranges::sort(models);
  return models;
}

std::vector<Bf16> RowOf(const WeightMatrix& matrix, int64_t row) {
  std::vector<float> values(static_cast<size_t>(matrix.inputs()));
  matrix.GetRow(row, values.data());
  std::vector<Bf16> rounded;
  for (const float value : values) rounded.push_back(ToBf16(value));
  return rounded;
}

bool SameBits(std::span<const Bf16> a, std::span<const Bf16> b) {
  return a.size() == b.size() && std::memcmp(a.data(), b.data(), a.size_bytes()) == 0;
}

// Quantised matrices are in memory in both.
void ExpectSame(const WeightMatrix& stored, const WeightMatrix& packed) {
  if (!packed.quantised().empty()) {
    const auto a = stored.memory(), b = packed.memory();
    ASSERT_EQ(a.size(), b.size());
    for (size_t i = 0; i < a.size(); ++i) EXPECT_TRUE(std::ranges::equal(a[i], b[i]));
    return;
  }
  ASSERT_NE(stored.stored(), nullptr);
  ASSERT_EQ(stored.outputs(), packed.outputs());
  ASSERT_EQ(stored.inputs(), packed.inputs());
  const int64_t third = stored.inputs() / 3;
  for (int64_t row = 0; row < packed.outputs(); ++row) {
    const std::vector<Bf16> want = RowOf(packed, row);
    EXPECT_TRUE(SameBits(RowOf(stored, row), want)) << row;
    std::vector<Bf16> part(static_cast<size_t>(stored.inputs() - third));
    stored.stored()->ReadRow(row, third, stored.inputs() - third, part.data());
    EXPECT_TRUE(SameBits(part, std::span(want).subspan(static_cast<size_t>(third)))) << row;
  }
}

// In a file, the heads' matrices are one; in memory those of queries are transposed.
void ExpectSame(const LatentWeights& stored, const LatentWeights& packed) {
  EXPECT_EQ(stored.norm, packed.norm);
  EXPECT_EQ(stored.query_norm, packed.query_norm);
  if (stored.up.outputs() == 0) {  // quantised: the heads' matrices are in memory in both
    for (const auto heads : {&LatentWeights::queries, &LatentWeights::values}) {
      ASSERT_EQ((stored.*heads).size(), (packed.*heads).size());
      for (size_t h = 0; h < (packed.*heads).size(); ++h) {
        EXPECT_TRUE(std::ranges::equal((stored.*heads)[h].memory(), (packed.*heads)[h].memory()));
      }
    }
    return;
  }
  int64_t row = 0;
  for (size_t h = 0; h < packed.queries.size(); ++h) {
    const PackedMatrix &queries = packed.queries[h], &values = packed.values[h];
    std::vector<float> query(static_cast<size_t>(queries.inputs()));
    for (int64_t dim = 0; dim < queries.inputs(); ++dim, ++row) {
      const std::vector<Bf16> want = RowOf(stored.up, row);
      for (int64_t i = 0; i < queries.outputs(); ++i) {
        queries.GetRow(i, query.data());
        EXPECT_EQ(query[static_cast<size_t>(dim)], ToFloat(want[static_cast<size_t>(i)]));
      }
    }
    for (int64_t dim = 0; dim < values.outputs(); ++dim, ++row) {
      std::vector<float> value(static_cast<size_t>(values.inputs()));
      values.GetRow(dim, value.data());
      const std::vector<Bf16> want = RowOf(stored.up, row);
      for (size_t i = 0; i < value.size(); ++i) EXPECT_EQ(value[i], ToFloat(want[i]));
    }
  }
  EXPECT_EQ(row, stored.up.outputs());
}

void ExpectSame(const LayerWeights& stored, const LayerWeights& packed) {
  const auto a = stored.Matrices(), b = packed.Matrices();
  ASSERT_EQ(a.size(), b.size());
  for (size_t i = 0; i < a.size(); ++i) ExpectSame(*a[i], *b[i]);
  for (const auto vector :
       {&LayerWeights::attention_norm, &LayerWeights::qkv_bias, &LayerWeights::q_norm,
        &LayerWeights::k_norm, &LayerWeights::attention_output_bias,
        &LayerWeights::attention_output_norm, &LayerWeights::mlp_norm, &LayerWeights::gate_up_bias,
        &LayerWeights::down_bias, &LayerWeights::mlp_output_norm}) {
    EXPECT_EQ(stored.*vector, packed.*vector);
  }
  ASSERT_EQ(stored.latents.has_value(), packed.latents.has_value());
  if (packed.latents.has_value()) ExpectSame(*stored.latents, *packed.latents);
  ASSERT_EQ(stored.experts.has_value(), packed.experts.has_value());
  if (!packed.experts.has_value()) return;
  EXPECT_EQ(stored.experts->router, packed.experts->router);
  EXPECT_EQ(stored.experts->choice_bias, packed.experts->choice_bias);
  EXPECT_EQ(stored.experts->shared_gate, packed.experts->shared_gate);
}

void ExpectSameEmbedding(const Weights& stored, const Weights& packed) {
  if (packed.embedding_weight.has_value()) {  // quantised
    ASSERT_TRUE(stored.embedding_weight.has_value());
    return ExpectSame(*stored.embedding_weight, *packed.embedding_weight);
  }
  ASSERT_EQ(stored.embedding_weight.has_value(), packed.embedding.bytes() > 0);
  if (packed.embedding.bytes() == 0) return;
  const auto width = static_cast<size_t>(packed.config.hidden);
  for (int64_t row = 0; row < packed.config.vocab; ++row) {
    const Bf16* want = packed.embedding.as<const Bf16>() + static_cast<size_t>(row) * width;
    EXPECT_TRUE(SameBits(RowOf(*stored.embedding_weight, row), {want, width})) << row;
  }
}

TEST(StoredModelTest, EveryCheckpointHasTheWeightsThatTheCpuHas) {
  int models = 0;
  for (const std::string& name : GoldenModels()) {
    SCOPED_TRACE(name);
    const auto packed = LoadModel(name);
    ASSERT_TRUE(packed.ok()) << packed.status();
    const auto stored = StoredModel::Open(name, {.threads = kThreads});
    ASSERT_TRUE(stored.ok()) << stored.status();
    EXPECT_EQ((*stored)->Fingerprint(), packed->fingerprint);
    const Weights& weights = (*stored)->weights();
    EXPECT_EQ(weights.FormName(), packed->weights.FormName());
    ExpectSame(weights.lm_head, packed->weights.lm_head);
    ExpectSameEmbedding(weights, packed->weights);
    EXPECT_EQ(weights.final_norm, packed->weights.final_norm);
    ASSERT_EQ(weights.layers.size(), packed->weights.layers.size());
    for (size_t i = 0; i < weights.layers.size(); ++i) {
      ExpectSame(weights.layers[i], packed->weights.layers[i]);
    }
    ++models;
  }
  EXPECT_GE(models, 30);
}

nlohmann::json Config(int vocab) {
  return {{"architectures", {"LlamaForCausalLM"}},
          {"hidden_size", 1024},
          {"intermediate_size", 32},
          {"num_hidden_layers", 1},
          {"num_attention_heads", 2},
          {"num_key_value_heads", 1},
          {"head_dim", 8},
          {"vocab_size", vocab},
          {"max_position_embeddings", 64}};
}

std::vector<WrittenTensor> Tensors(int vocab) {
  const std::string layer = "model.layers.0.";
  std::vector<WrittenTensor> tensors = {{"lm_head.weight", {vocab, 1024}},
                                        {"model.embed_tokens.weight", {vocab, 1024}},
                                        {layer + "input_layernorm.weight", {1024}},
                                        {layer + "mlp.down_proj.weight", {1024, 32}},
                                        {layer + "mlp.gate_proj.weight", {32, 1024}},
                                        {layer + "mlp.up_proj.weight", {32, 1024}},
                                        {layer + "post_attention_layernorm.weight", {1024}},
                                        {layer + "self_attn.k_proj.weight", {8, 1024}},
                                        {layer + "self_attn.o_proj.weight", {1024, 16}},
                                        {layer + "self_attn.q_proj.weight", {16, 1024}},
                                        {layer + "self_attn.v_proj.weight", {8, 1024}},
                                        {"model.norm.weight", {1024}}};
  for (WrittenTensor& tensor : tensors) tensor.dtype = "BF16";
  return tensors;
}

// Errors are those of a load into memory, and come before anything is hashed or read.
TEST(StoredModelTest, ErrorsAreThoseOfLoadModel) {
  constexpr int kVocab = 32;
  const auto expect_same_error = [](const std::vector<WrittenTensor>& tensors) {
    const TempFolder directory;
    directory.Write("config.json", Config(kVocab).dump());
    directory.Write("model.safetensors", SafetensorsBytes(tensors));
    const absl::Status want = LoadModel(directory.path()).status();
    EXPECT_FALSE(want.ok());
    EXPECT_EQ(StoredModel::Open(directory.path(), {.threads = kThreads}).status(), want);
  };
  for (size_t i = 0; i < Tensors(kVocab).size(); ++i) {
    auto missing = Tensors(kVocab), misshapen = Tensors(kVocab), untyped = Tensors(kVocab);
    missing.erase(missing.begin() + static_cast<ptrdiff_t>(i));
    expect_same_error(missing);
    misshapen[i].shape[0] += 1;
    expect_same_error(misshapen);
    untyped[i].dtype = "I8";
    expect_same_error(untyped);
  }
  auto more = Tensors(kVocab);
  more.push_back({"model.layers.0.self_attn.q_proj.bias", {16}});
  expect_same_error(more);
}

// Pages with centred keys depend on the means, so workers with others have another model.
TEST(StoredModelTest, MeansOfKeysAreThoseOfLoadModel) {
  const TempFolder directory;
  directory.Write("config.json", Config(32).dump());
  directory.Write("model.safetensors", SafetensorsBytes(Tensors(32)));
  const StoredModel::Options options{.key_means = true, .threads = kThreads};
  const absl::Status missing = StoredModel::Open(directory.path(), options).status();
  EXPECT_EQ(missing, LoadModel(directory.path(), {.key_means = true}).status());
  EXPECT_EQ(missing.code(), absl::StatusCode::kNotFound);
  directory.Write("key_means.safetensors", SafetensorsBytes({{"layers.0", {1, 8}, "F32", 1}}));
  const auto stored = StoredModel::Open(directory.path(), options);
  const auto packed = LoadModel(directory.path(), {.key_means = true});
  ASSERT_TRUE(stored.ok() && packed.ok()) << stored.status() << packed.status();
  EXPECT_EQ((*stored)->weights().layers[0].key_means, packed->weights.layers[0].key_means);
  EXPECT_EQ((*stored)->weights().layers[0].key_means.size(), 8u);
  EXPECT_EQ((*stored)->Fingerprint(), packed->fingerprint);
  const auto plain = StoredModel::Open(directory.path(), {.threads = kThreads});
  EXPECT_TRUE((*plain)->weights().layers[0].key_means.empty());
  EXPECT_NE((*plain)->Fingerprint(), packed->fingerprint);
}

size_t AnonymousBytes() {
  std::ifstream status("/proc/self/status");
  for (std::string line; std::getline(status, line);) {
    if (line.starts_with("RssAnon:")) return std::stoull(line.substr(8)) << 10;
  }
  ADD_FAILURE() << "/proc/self/status has no RssAnon";
  return 0;
}

TEST(StoredModelTest, TheMatricesTakeNoMemory) {
  constexpr int kVocab = 16384;
  const TempFolder directory;
  directory.Write("config.json", Config(kVocab).dump());
  directory.Write("model.safetensors", SafetensorsBytes(Tensors(kVocab)));
  const size_t file = std::filesystem::file_size(directory.path() + "/model.safetensors");
  ASSERT_GT(file, size_t{64} << 20);
  const size_t before = AnonymousBytes();
  const auto model = StoredModel::Open(directory.path(), {.threads = kThreads});
  ASSERT_TRUE(model.ok()) << model.status();
  EXPECT_EQ((*model)->weights().bytes(), 0u);
  std::vector<Bf16> row(1024);
  for (int64_t i = 0; i < kVocab; ++i) {
    (*model)->weights().lm_head.stored()->ReadRow(i, 0, 1024, row.data());
  }
  EXPECT_NE((*model)->Fingerprint(), 0u);
  EXPECT_LT(AnonymousBytes(), before + file / 4);
}

}  // namespace
}  // namespace penstock
