#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "model/checkpoint/model_config.h"

namespace penstock {

// Radians per position of each rotated pair, scaled as `rope` says: linear, Llama 3's bands by
// wavelength, YaRN (Peng et al., arXiv 2309.00071), or LongRoPE (Ding et al., arXiv 2402.13753).
std::vector<float> RopeFrequencies(const RopeConfig& rope, int32_t head_dim);

// Cosines and sines [pairs] of one position, times the attention factor. The angle is a
// product in f32, as in Hugging Face's implementation.
void RopeAngles(std::span<const float> frequencies, float attention_factor, int32_t position,
                float* cosines, float* sines);

// How a layer rotates its queries and keys; without pairs if it does not.
struct LayerRotation {
  std::vector<float> frequencies;
  float attention_factor = 1;
};
LayerRotation RotationOf(const ModelConfig& config, int32_t layer);

}  // namespace penstock
