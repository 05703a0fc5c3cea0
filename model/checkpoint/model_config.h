#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"
#include "model/checkpoint/quantisation_config.h"

namespace penstock {

// The extension of rotary frequencies beyond the trained context, named as in Hugging Face's
// `rope_scaling`: linear (position interpolation: Chen et al., arXiv 2306.15595), llama3 (Llama
// 3.1), yarn (Peng et al., arXiv 2309.00071).
enum class RopeScaling { kNone, kLinear, kLlama3, kYarn };

// The rotary embedding of a model. Plain data.
struct RopeConfig {
  float theta = 10000.0f;
  RopeScaling scaling = RopeScaling::kNone;
  float factor = 1.0f;
  float low_freq_factor = 1.0f;   // llama3
  float high_freq_factor = 4.0f;  // llama3
  int32_t original_max_position = 0;
  float beta_fast = 32.0f;        // yarn
  float beta_slow = 1.0f;         // yarn
  float attention_factor = 1.0f;  // yarn: factor of cos and sin, with the default resolved

  bool operator==(const RopeConfig&) const = default;
};

// The architecture of a Llama-family decoder, from config.json. Plain data.
struct ModelConfig {
  std::string architecture;  // e.g. "LlamaForCausalLM"
  int32_t layers = 0;
  int32_t hidden = 0;
  int32_t intermediate = 0;
  int32_t heads = 0;
  int32_t kv_heads = 0;
  int32_t head_dim = 0;
  int32_t vocab = 0;
  int32_t max_position = 0;  // tokens of prompt and output together
  float norm_epsilon = 1e-5f;
  bool tied_embeddings = false;
  bool qkv_bias = false;     // Qwen2
  bool output_bias = false;  // Llama with attention_bias: o_proj has a bias too
  bool mlp_bias = false;
  bool qk_norm = false;  // Qwen3: RMSNorm per head of q and k, before RoPE
  RopeConfig rope;
  // For each layer: the number of last positions that a token attends to, itself included; 0: all.
  std::vector<int32_t> sliding_window;
  QuantisationConfig quantisation;
  std::vector<uint32_t> eos_token_ids;  // from generation_config.json, or else config.json
  std::optional<uint32_t> bos_token_id;
};

// Reads config.json and generation_config.json of a directory, or what a GGUF file has in their
// place. Returns INVALID_ARGUMENT that names the field and the allowed values, or NOT_FOUND that
// names the missing file.
absl::StatusOr<ModelConfig> LoadModelConfig(const std::string& model);

// LoadModelConfig for the contents of the files; `generation_config` may be empty. Each file is
// limited to 1 MiB, and every number to a value that kernels and memory can handle. Refuses a model
// that would not run exactly as trained (another architecture, dynamic or longrope RoPE, other
// quantized weights than QuantisationConfig describes).
absl::StatusOr<ModelConfig> ParseModelConfig(std::string_view config,
                                             std::string_view generation_config);

}  // namespace penstock
