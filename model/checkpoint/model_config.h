#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"

namespace penstock {

// How rotary frequencies are stretched beyond the trained context (research names as in Hugging
// Face's `rope_scaling`).
enum class RopeScaling { kNone, kLinear, kLlama3, kYarn };

struct RopeConfig {
  float theta = 10000.0f;
  RopeScaling scaling = RopeScaling::kNone;
  float factor = 1.0f;
  float low_freq_factor = 1.0f;   // llama3
  float high_freq_factor = 4.0f;  // llama3
  int32_t original_max_position = 0;
  float beta_fast = 32.0f;        // yarn
  float beta_slow = 1.0f;         // yarn
  float attention_factor = 1.0f;  // yarn: times cos and sin, the default already worked out

  bool operator==(const RopeConfig&) const = default;
};

// A decoder of the Llama family as config.json describes it.
struct ModelConfig {
  std::string architecture;  // e.g. "LlamaForCausalLM"
  int32_t layers = 0;
  int32_t hidden = 0;
  int32_t intermediate = 0;
  int32_t heads = 0;
  int32_t kv_heads = 0;
  int32_t head_dim = 0;
  int32_t vocab = 0;
  int32_t max_position = 0;  // tokens of prompt and answer together
  float norm_epsilon = 1e-5f;
  bool tied_embeddings = false;
  bool qkv_bias = false;     // Qwen2
  bool output_bias = false;  // Llama with attention_bias also has it on o_proj
  bool mlp_bias = false;
  bool qk_norm = false;  // Qwen3: RMSNorm per head of q and k, before RoPE
  RopeConfig rope;
  // Per layer: the number of last positions a token attends to (itself included), 0 = all.
  std::vector<int32_t> sliding_window;
  std::vector<uint32_t> eos_token_ids;  // from generation_config.json, else config.json
  std::optional<uint32_t> bos_token_id;
};

// Reads `directory`/config.json and generation_config.json. INVALID_ARGUMENT names the field and
// what is allowed; NOT_FOUND names the missing file.
absl::StatusOr<ModelConfig> LoadModelConfig(const std::string& directory);

// The same from the files' contents; `generation_config` may be empty. Each is bounded to 1 MiB and
// every number in it to what kernels and memory can take. What would not run exactly as the model
// was trained (another architecture, dynamic or longrope RoPE, quantized weights) is refused.
absl::StatusOr<ModelConfig> ParseModelConfig(std::string_view config,
                                             std::string_view generation_config);

}  // namespace penstock
