#pragma once

#include <algorithm>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"
#include "model/checkpoint/model_family.h"
#include "model/checkpoint/quantisation_config.h"
#include "model/checkpoint/rope_config.h"

namespace penstock {

// The rotation of queries and keys in a layer.
enum class LayerRope : uint8_t { kMain, kLocal, kNone };

// A mixture of experts: each token uses some of them, which a router chooses. Plain data.
struct ExpertConfig {
  int32_t count = 0;  // 0: MLPs are dense
  int32_t per_token = 0;
  int32_t intermediate = 0;
  int32_t shared_intermediate = 0;  // of the expert that all tokens use; 0: none
  bool shared_gate = true;          // the shared expert's weight is learned; else it is 1
  bool normalise = true;            // the weights of a token's experts add up to 1
  bool biases = false;              // the router and all matrices of experts have biases
  float gate_limit = 0;             // of gpt-oss's clamped gate; 0: a plain gate
  // The choice, as RouteArgs describes it.
  bool sigmoid = false;
  bool choice_bias = false;
  int32_t groups = 1;
  int32_t kept_groups = 1;
  float scale = 1;
  std::vector<bool> dense;  // for each layer, whether its MLP is dense; empty: none is
};

// Multi-head latent attention (DeepSeek-V2, arXiv 2405.04434): keys and values of all heads are
// products of one latent. The cache has the latent and one rotated key that all heads share. Plain
// data.
struct LatentConfig {
  int32_t rank = 0;        // of the latent; 0: attention has keys and values of its own
  int32_t query_rank = 0;  // queries are products of a latent of this rank; 0: of the input
  // Dimensions of a head: of queries and keys, without and with rotation, and of values.
  int32_t plain_dims = 0;
  int32_t rope_dims = 0;
  int32_t value_dims = 0;

  int32_t QueryDims() const { return plain_dims + rope_dims; }
};

// A decoder, from config.json and the row of its architecture in model_family.cc. Plain data;
// fields below bos_token_id are Llama's unless the family sets them.
struct ModelConfig {
  std::string architecture;  // e.g. "LlamaForCausalLM"
  int32_t layers = 0;
  int32_t hidden = 0;
  int32_t intermediate = 0;
  int32_t heads = 0;
  int32_t kv_heads = 0;  // 1 if attention has latents
  int32_t head_dim = 0;  // of a latent with its key: latent.rank + latent.rope_dims
  int32_t vocab = 0;
  int32_t max_position = 0;  // tokens of prompt and output together
  float norm_epsilon = 1e-5f;
  bool tied_embeddings = false;
  bool qkv_bias = false;     // Qwen2
  bool output_bias = false;  // Llama with attention_bias: o_proj has a bias too
  bool mlp_bias = false;
  QkNorm qk_norm = QkNorm::kNone;
  RopeConfig rope;
  // For each layer: the number of last positions that a token attends to, itself included; 0: all.
  std::vector<int32_t> sliding_window;
  QuantisationConfig quantisation;
  std::vector<uint32_t> eos_token_ids;  // from generation_config.json, or else config.json
  std::optional<uint32_t> bos_token_id;

  LayerNames names;
  float norm_offset = 0;           // added to the stored weights of norms
  bool layer_norm = false;         // norms are layer norms with a bias, not RMS norms
  bool parallel_residual = false;  // the MLP's input is attention's, not its output
  Activation activation = Activation::kSilu;
  std::vector<LayerRope> layer_rope;  // for each layer; empty: kMain
  RopeConfig local_rope;              // of layers with kLocal
  float attention_scale = 0;          // factor of the scores; 0: 1 / sqrt(head_dim)
  bool attention_sinks = false;       // each head has a score without a value in its softmax
  float attention_cap = 0;            // scores become cap * tanh(score / cap); 0: no cap
  float logit_cap = 0;                // logits likewise
  float embedding_multiplier = 1;
  float residual_multiplier = 1;  // of the outputs of attention and MLP
  float logit_divisor = 1;
  ExpertConfig experts;
  LatentConfig latent;
  // Layers for multi-token prediction (MTP) that the checkpoint has behind the others. They guess
  // further tokens, and the model's own logits do not depend on them.
  int32_t mtp_layers = 0;
  bool use_mtp = false;  // the first of them is loaded, as layer `layers`

  bool HasLatents() const { return latent.rank > 0; }
  // The width of attention's output, which the output matrix takes.
  int64_t AttentionWidth() const {
    return int64_t{heads} * (HasLatents() ? latent.value_dims : head_dim);
  }
  bool HasExperts(int32_t layer) const {
    const bool dense = layer < std::ssize(experts.dense) && experts.dense[layer];
    return experts.count > 0 && !dense;
  }

  // The layers that have keys and values in the cache.
  int32_t KvLayers() const { return layers + (use_mtp ? 1 : 0); }
  int32_t WindowOf(int32_t layer) const {
    return layer < std::ssize(sliding_window) ? sliding_window[layer] : 0;
  }

  // The window of all layers; 0: they differ, or none has one.
  int32_t WindowOfAllLayers() const {
    const auto differs = [this](int32_t window) { return window != sliding_window.front(); };
    const bool equal = !sliding_window.empty() &&
                       std::none_of(sliding_window.begin(), sliding_window.end(), differs);
    return equal ? sliding_window.front() : 0;
  }

  LayerRope RopeOf(int32_t layer) const {
    return layer_rope.empty() ? LayerRope::kMain : layer_rope[static_cast<size_t>(layer)];
  }
};

// Reads config.json and generation_config.json of a directory, or what a GGUF file has in their
// place. Returns INVALID_ARGUMENT that names the field and the allowed values, or NOT_FOUND that
// names the missing file.
absl::StatusOr<ModelConfig> LoadModelConfig(const std::string& model);

// LoadModelConfig for the contents of the files; `generation_config` may be empty. Each file is
// limited to 1 MiB, and every number to a value that kernels and memory can handle. Refuses a model
// that would not run exactly as trained (another architecture, dynamic RoPE, other quantized
// weights than QuantisationConfig describes).
absl::StatusOr<ModelConfig> ParseModelConfig(std::string_view config,
                                             std::string_view generation_config);

}  // namespace penstock
