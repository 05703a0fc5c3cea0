#pragma once

#include "model/forward/model_runner.h"

namespace penstock {

// What a runner can take in one step.
struct StepLimits {
  KvLayout layout;  // but for block_tokens and dtype
  int32_t vocab = 0;
  int32_t max_position = 0;
  int64_t max_tokens = 0;
  bool draws_tokens = false;
};

// INVALID_ARGUMENT names what is out of range: token, position, block table, layout, shape of the
// logits, draws that the runner does not make, or more tokens than the limit.
absl::Status CheckStep(const StepArgs& args, const StepLimits& limits);

}  // namespace penstock
