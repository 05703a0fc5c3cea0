#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "model/checkpoint/model_config.h"

namespace penstock {

// Radians per position of each of the head_dim / 2 rotated pairs, scaled as `rope` says: linear,
// Llama 3's bands by wavelength, or YaRN (Peng et al., arXiv 2309.00071).
std::vector<float> RopeFrequencies(const RopeConfig& rope, int32_t head_dim);

// Cosines and sines [head_dim / 2] of one position, times the attention factor. The angle is a
// product in f32, as in Hugging Face's implementation.
void RopeAngles(std::span<const float> frequencies, float attention_factor, int32_t position,
                float* cosines, float* sines);

}  // namespace penstock
