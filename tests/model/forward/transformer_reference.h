#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "model/forward/weights.h"

namespace penstock {

// The logits after the last of `tokens`, from a plain forward pass in double over the whole
// sequence: no cache, no batching. Keys and values are rounded to bf16 as pages hold them.
std::vector<double> ReferenceLogits(const Weights& weights, std::span<const uint32_t> tokens);

}  // namespace penstock
