#pragma once

#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

#include "base/status.h"

namespace penstock {

// The extension of rotary frequencies beyond the trained context, named as in Hugging Face's
// `rope_scaling`: linear (position interpolation: Chen et al., arXiv 2306.15595), llama3 (Llama
// 3.1), yarn (Peng et al., arXiv 2309.00071), longrope (Ding et al., arXiv 2402.13753).
enum class RopeScaling { kNone, kLinear, kLlama3, kYarn, kLongRope };

// The rotary embedding of a model. Plain data.
struct RopeConfig {
  float theta = 10000.0f;
  RopeScaling scaling = RopeScaling::kNone;
  float factor = 1.0f;
  float low_freq_factor = 1.0f;   // llama3
  float high_freq_factor = 4.0f;  // llama3
  int32_t original_max_position = 0;
  float beta_fast = 32.0f;  // yarn
  float beta_slow = 1.0f;   // yarn
  bool truncate = true;     // yarn: the ramp begins and ends at whole pairs
  // yarn and longrope: factor of cos and sin, with the default resolved
  float attention_factor = 1.0f;
  // yarn: factor of the scores of latent attention, from mscale_all_dim
  float score_factor = 1.0f;
  std::vector<float> divisors;  // longrope: of the frequency of each rotated pair
  int32_t rotary_dims = 0;      // the first dimensions of a head, which are rotated; 0: all
  // The checkpoint stores the two dimensions of a rotated pair side by side. In memory they are in
  // the first and the second half of the rotated dimensions, as in other checkpoints.
  bool interleaved = false;

  int32_t RotaryDims(int32_t head_dim) const { return rotary_dims == 0 ? head_dim : rotary_dims; }
  bool operator==(const RopeConfig&) const = default;
};

// The values of config.json that a rotary embedding depends on, outside of its own object.
struct RopeContext {
  int64_t max_position = 0;           // max_position_embeddings
  int64_t original_max_position = 0;  // original_max_position_embeddings of config.json, or 0
  int32_t head_dim = 0;
  bool partial = false;  // the family may rotate a part of each head
};

// Sets the dimensions that `factor` of each head are. INVALID_ARGUMENT names the field unless the
// family may rotate a part and the part is an even number of dimensions.
absl::Status SetRotaryDims(double factor, const RopeContext& context, const std::string& where,
                           RopeConfig* rope);

// Parses `dict`, the value of rope_scaling or of rope_parameters, over the values of `rope`.
// `where` precedes field names in errors.
absl::StatusOr<RopeConfig> ParseRope(const nlohmann::json& dict, const std::string& where,
                                     const RopeContext& context, RopeConfig rope);

}  // namespace penstock
