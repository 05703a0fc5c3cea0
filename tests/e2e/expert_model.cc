#include "tests/e2e/expert_model.h"

#include <cmath>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <random>
#include <vector>

#include "base/check.h"
#include "kernels/bf16.h"
#include "tests/support/environment.h"

namespace penstock {
namespace {

using Json = nlohmann::json;

constexpr int64_t kHidden = 64, kLayers = 3, kHeads = 4, kKvHeads = 2, kHeadDim = 32;
constexpr int64_t kExperts = 8, kIntermediate = 32, kDenseIntermediate = 96, kDenseLayer = 1;

class ModelWriter {
 public:
  void Matrix(const std::string& name, int64_t rows, int64_t columns) {
    Add(name + ".weight", {rows, columns}, 0, 1.6f / std::sqrt(static_cast<float>(columns)));
  }
  void Norm(const std::string& name, int64_t size) { Add(name + ".weight", {size}, 1, 0.2f); }
  void Biases(const std::string& name, const std::vector<int64_t>& shape) {
    Add(name, shape, 0, 0.3f);
  }
  void BiasedMatrix(const std::string& name, int64_t rows, int64_t columns) {
    Matrix(name, rows, columns);
    Biases(name + ".bias", {rows});
  }
  // All experts' matrices in MXFP4, with scales from 2^-8 to 2^-5.
  void Mxfp4(const std::string& name, int64_t rows, int64_t columns) {
    AddBytes(name + "_blocks", {kExperts, rows, columns / 32, 16}, 0, 255);
    AddBytes(name + "_scales", {kExperts, rows, columns / 32}, 119, 122);
    Biases(name + "_bias", {kExperts, rows});
  }

  std::string Bytes() const {
    const std::string header = header_.dump();
    const uint64_t length = header.size();
    std::string file(reinterpret_cast<const char*>(&length), sizeof(length));
    return file + header + data_;
  }

 private:
  void AddBytes(const std::string& name, const std::vector<int64_t>& shape, int min, int max) {
    std::uniform_int_distribution<int> byte(min, max);
    const size_t begin = data_.size();
    int64_t size = 1;
    for (const int64_t extent : shape) size *= extent;
    for (int64_t i = 0; i < size; ++i) data_ += static_cast<char>(byte(random_));
    header_[name] = {{"dtype", "U8"}, {"shape", shape}, {"data_offsets", {begin, data_.size()}}};
  }

  void Add(const std::string& name, const std::vector<int64_t>& shape, float mean,
           float deviation) {
    std::normal_distribution<float> normal(mean, deviation);
    const size_t begin = data_.size();
    const int64_t size = shape.size() == 1 ? shape[0] : shape[0] * shape[1];
    for (int64_t i = 0; i < size; ++i) {
      const Bf16 value = ToBf16(normal(random_));
      data_.append(reinterpret_cast<const char*>(&value), sizeof(value));
    }
    header_[name] = {{"dtype", "BF16"}, {"shape", shape}, {"data_offsets", {begin, data_.size()}}};
  }

  std::mt19937 random_{5};
  Json header_ = Json::object();
  std::string data_;
};

void AddMlp(ModelWriter& writer, const std::string& prefix, int64_t intermediate) {
  writer.Matrix(prefix + "gate_proj", intermediate, kHidden);
  writer.Matrix(prefix + "up_proj", intermediate, kHidden);
  writer.Matrix(prefix + "down_proj", kHidden, intermediate);
}

void AddLayer(ModelWriter& writer, int64_t layer) {
  const std::string prefix = fmt::format("model.layers.{}.", layer);
  const std::string attention = prefix + "self_attn.", mlp = prefix + "mlp.";
  writer.Norm(prefix + "input_layernorm", kHidden);
  writer.Matrix(attention + "q_proj", kHeads * kHeadDim, kHidden);
  writer.Matrix(attention + "k_proj", kKvHeads * kHeadDim, kHidden);
  writer.Matrix(attention + "v_proj", kKvHeads * kHeadDim, kHidden);
  writer.Matrix(attention + "o_proj", kHidden, kHeads * kHeadDim);
  writer.Norm(attention + "q_norm", kHeadDim);
  writer.Norm(attention + "k_norm", kHeadDim);
  writer.Norm(prefix + "post_attention_layernorm", kHidden);
  if (layer == kDenseLayer) return AddMlp(writer, mlp, kDenseIntermediate);
  writer.Matrix(mlp + "gate", kExperts, kHidden);
  for (int64_t e = 0; e < kExperts; ++e) {
    AddMlp(writer, fmt::format("{}experts.{}.", mlp, e), kIntermediate);
  }
}

void AddGptOssLayer(ModelWriter& writer, int64_t layer) {
  const std::string prefix = fmt::format("model.layers.{}.", layer);
  const std::string attention = prefix + "self_attn.", mlp = prefix + "mlp.";
  writer.Norm(prefix + "input_layernorm", kHidden);
  writer.BiasedMatrix(attention + "q_proj", kHeads * kHeadDim, kHidden);
  writer.BiasedMatrix(attention + "k_proj", kKvHeads * kHeadDim, kHidden);
  writer.BiasedMatrix(attention + "v_proj", kKvHeads * kHeadDim, kHidden);
  writer.BiasedMatrix(attention + "o_proj", kHidden, kHeads * kHeadDim);
  writer.Biases(attention + "sinks", {kHeads});
  writer.Norm(prefix + "post_attention_layernorm", kHidden);
  writer.BiasedMatrix(mlp + "router", kExperts, kHidden);
  writer.Mxfp4(mlp + "experts.gate_up_proj", 2 * kIntermediate, kHidden);
  writer.Mxfp4(mlp + "experts.down_proj", kHidden, kIntermediate);
}

Json GptOssConfig(int64_t vocab) {
  return {{"architectures", {"GptOssForCausalLM"}},
          {"hidden_size", kHidden},
          {"intermediate_size", kIntermediate},
          {"num_hidden_layers", kLayers},
          {"num_attention_heads", kHeads},
          {"num_key_value_heads", kKvHeads},
          {"head_dim", kHeadDim},
          {"attention_bias", true},
          {"sliding_window", 100},
          {"num_local_experts", kExperts},
          {"num_experts_per_tok", 2},
          {"swiglu_limit", 2.0},
          {"rope_scaling",
           {{"rope_type", "yarn"},
            {"factor", 8.0},
            {"original_max_position_embeddings", 512},
            {"truncate", false}}},
          {"quantization_config", {{"quant_method", "mxfp4"}}},
          {"max_position_embeddings", 4096},
          {"vocab_size", vocab},
          {"eos_token_id", 1},
          {"bos_token_id", 0},
          {"torch_dtype", "bfloat16"}};
}

Json Config(int64_t vocab) {
  return {{"architectures", {"Qwen3MoeForCausalLM"}},
          {"hidden_size", kHidden},
          {"intermediate_size", kDenseIntermediate},
          {"moe_intermediate_size", kIntermediate},
          {"num_hidden_layers", kLayers},
          {"num_attention_heads", kHeads},
          {"num_key_value_heads", kKvHeads},
          {"head_dim", kHeadDim},
          {"num_experts", kExperts},
          {"num_experts_per_tok", 2},
          {"norm_topk_prob", true},
          {"mlp_only_layers", {kDenseLayer}},
          {"max_position_embeddings", 4096},
          {"rms_norm_eps", 1e-6},
          {"rope_theta", 10000.0},
          {"vocab_size", vocab},
          {"eos_token_id", 1},
          {"bos_token_id", 0},
          {"torch_dtype", "bfloat16"}};
}

void WriteFile(const std::string& path, const std::string& bytes) {
  std::ofstream file(path, std::ios::binary);
  file << bytes;
  PENSTOCK_CHECK(file.good());
}

void WriteModel(const std::string& folder, void (*add_layer)(ModelWriter&, int64_t),
                Json (*config)(int64_t)) {
  std::ifstream tiny(ModelFolder() + "/config.json");
  const int64_t vocab = Json::parse(tiny)["vocab_size"];
  ModelWriter writer;
  writer.Matrix("model.embed_tokens", vocab, kHidden);
  for (int64_t layer = 0; layer < kLayers; ++layer) add_layer(writer, layer);
  writer.Norm("model.norm", kHidden);
  writer.Matrix("lm_head", vocab, kHidden);
  WriteFile(folder + "/config.json", config(vocab).dump());
  WriteFile(folder + "/model.safetensors", writer.Bytes());
  for (const char* name : {"tokenizer.json", "tokenizer_config.json", "special_tokens_map.json"}) {
    std::filesystem::copy_file(ModelFolder() + "/" + name, folder + "/" + name);
  }
}

}  // namespace

void WriteExpertModel(const std::string& folder) { WriteModel(folder, AddLayer, Config); }
void WriteGptOssModel(const std::string& folder) {
  WriteModel(folder, AddGptOssLayer, GptOssConfig);
}

}  // namespace penstock
