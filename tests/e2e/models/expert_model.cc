#include "tests/e2e/models/expert_model.h"

#include <fmt/format.h>

#include <functional>

#include "tests/e2e/models/model_writer.h"

namespace penstock {
namespace {

using Json = nlohmann::json;

constexpr int64_t kHidden = 64, kLayers = 3, kHeads = 4, kKvHeads = 2, kHeadDim = 64;
constexpr int64_t kExperts = 8, kIntermediate = 32, kDenseIntermediate = 96, kDenseLayer = 1;

void AddLayer(ModelWriter& writer, int64_t layer, int64_t kv_heads,
              int64_t dense_layer = kDenseLayer) {
  const std::string prefix = fmt::format("model.layers.{}.", layer);
  const std::string attention = prefix + "self_attn.", mlp = prefix + "mlp.";
  writer.Norm(prefix + "input_layernorm", kHidden);
  writer.Matrix(attention + "q_proj", kHeads * kHeadDim, kHidden);
  writer.Matrix(attention + "k_proj", kv_heads * kHeadDim, kHidden);
  writer.Matrix(attention + "v_proj", kv_heads * kHeadDim, kHidden);
  writer.Matrix(attention + "o_proj", kHidden, kHeads * kHeadDim);
  writer.Norm(attention + "q_norm", kHeadDim);
  writer.Norm(attention + "k_norm", kHeadDim);
  writer.Norm(prefix + "post_attention_layernorm", kHidden);
  if (layer == dense_layer) return writer.Mlp(mlp, kHidden, kDenseIntermediate);
  writer.Matrix(mlp + "gate", kExperts, kHidden);
  for (int64_t e = 0; e < kExperts; ++e) {
    writer.Mlp(fmt::format("{}experts.{}.", mlp, e), kHidden, kIntermediate);
  }
}

// The last layer has the one for multi-token prediction behind it.
void AddGlmLayer(ModelWriter& writer, int64_t layer) {
  const std::string prefix = fmt::format("model.layers.{}.", layer);
  AddLayer(writer, layer, kKvHeads, /*dense_layer=*/0);
  if (layer > 0) {
    writer.Bias(prefix + "mlp.gate.e_score_correction_bias", kExperts);
    writer.Mlp(prefix + "mlp.shared_experts.", kHidden, kIntermediate);
  }
  if (layer + 1 == kLayers) return AddGlmLayer(writer, kLayers);
  if (layer < kLayers) return;
  for (const char* norm : {"enorm", "hnorm", "shared_head.norm"}) {
    writer.Norm(prefix + norm, kHidden);
  }
  writer.Matrix(prefix + "eh_proj", kHidden, 2 * kHidden);
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
  writer.Mxfp4(mlp + "experts.gate_up_proj", kExperts, 2 * kIntermediate, kHidden);
  writer.Mxfp4(mlp + "experts.down_proj", kExperts, kHidden, kIntermediate);
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

Json GlmConfig(int64_t vocab) {
  return {{"architectures", {"Glm4MoeForCausalLM"}},
          {"hidden_size", kHidden},
          {"intermediate_size", kDenseIntermediate},
          {"moe_intermediate_size", kIntermediate},
          {"num_hidden_layers", kLayers},
          {"num_nextn_predict_layers", 1},
          {"num_attention_heads", kHeads},
          {"num_key_value_heads", kKvHeads},
          {"head_dim", kHeadDim},
          {"attention_bias", false},
          {"use_qk_norm", true},
          {"partial_rotary_factor", 0.5},
          {"n_routed_experts", kExperts},
          {"n_shared_experts", 1},
          {"num_experts_per_tok", 2},
          {"n_group", 1},
          {"topk_group", 1},
          {"norm_topk_prob", true},
          {"routed_scaling_factor", 1.5},
          {"first_k_dense_replace", 1},
          {"max_position_embeddings", 4096},
          {"rms_norm_eps", 1e-5},
          {"rope_theta", 10000.0},
          {"vocab_size", vocab},
          {"eos_token_id", 1},
          {"bos_token_id", 0},
          {"torch_dtype", "bfloat16"}};
}

Json Config(int64_t vocab, int64_t kv_heads) {
  return {{"architectures", {"Qwen3MoeForCausalLM"}},
          {"hidden_size", kHidden},
          {"intermediate_size", kDenseIntermediate},
          {"moe_intermediate_size", kIntermediate},
          {"num_hidden_layers", kLayers},
          {"num_attention_heads", kHeads},
          {"num_key_value_heads", kv_heads},
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

void WriteModel(const std::string& folder,
                const std::function<void(ModelWriter&, int64_t)>& add_layer, const Json& config) {
  const int64_t vocab = BundledVocab();
  ModelWriter writer;
  writer.Matrix("model.embed_tokens", vocab, kHidden);
  for (int64_t layer = 0; layer < kLayers; ++layer) add_layer(writer, layer);
  writer.Norm("model.norm", kHidden);
  writer.Matrix("lm_head", vocab, kHidden);
  writer.Write(config, folder);
}

}  // namespace

void WriteExpertModel(const std::string& folder, int64_t kv_heads) {
  const auto add = [kv_heads](ModelWriter& writer, int64_t layer) {
    AddLayer(writer, layer, kv_heads);
  };
  WriteModel(folder, add, Config(BundledVocab(), kv_heads));
}
void WriteGptOssModel(const std::string& folder) {
  WriteModel(folder, AddGptOssLayer, GptOssConfig(BundledVocab()));
}
void WriteGlmMtpModel(const std::string& folder) {
  WriteModel(folder, AddGlmLayer, GlmConfig(BundledVocab()));
}

}  // namespace penstock
