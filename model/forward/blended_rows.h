#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "model/checkpoint/model_config.h"
#include "model/forward/model_runner.h"

namespace penstock {

// Decisions about blended tokens (BlendedTokens) that runners of all devices share. Pure functions.

// True if a model may blend: without windows and latents, with a layer behind the one that is
// checked, and without a layer that needs an output of every token. The caller checks that its
// positions are rotations.
bool CanBlend(const ModelConfig& config);

// KeyRotations::layers, where the main rotation is in table 0 and the local one in table 1.
std::vector<int32_t> RotationsOfLayers(const ModelConfig& config);

// Chooses the rows of a blended part that are computed further, counted from its first, ascending:
// those that deviate most, or all above the bound. Sets the part's results. `tokens` and `relative`
// are those of ValueDeviation.
std::vector<uint32_t> ChooseBlended(std::span<const float> tokens, float relative,
                                    BlendedTokens& blended);

}  // namespace penstock
