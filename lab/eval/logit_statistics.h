#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "lab/eval/kv_eval.h"

namespace penstock {

// log(sum(exp(logits)))
double LogSum(std::span<const float> logits);
uint32_t Best(std::span<const float> logits);
// KL of two distributions given as logits.
double Divergence(std::span<const float> exact, std::span<const float> other);
Estimate EstimateOf(const std::vector<double>& values);

}  // namespace penstock
