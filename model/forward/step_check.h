#pragma once

#include "model/forward/model_runner.h"

namespace penstock {

// The limits of a runner for one step.
struct StepLimits {
  KvLayout layout;  // block_tokens and dtype are ignored
  int32_t vocab = 0;
  int32_t max_position = 0;
  int64_t max_tokens = 0;
  bool draws_tokens = false;
  int32_t hidden_size = 0;
  bool takes_evicted = false;  // SequenceStep::evicted and StepArgs::on_queries
  bool has_mtp = false;
  bool blends = false;         // SequenceStep::blended
  bool selects_pages = false;  // SequenceStep::selection
};

// Returns INVALID_ARGUMENT that names the value out of range: a token, position, block table,
// layout, shape of the logits, a draw that the runner does not support, or the number of tokens.
absl::Status CheckStep(const StepArgs& args, const StepLimits& limits);

// The same for the hidden states of the tokens before, which StepMtp takes.
absl::Status CheckBefore(const StepArgs& args, int32_t hidden_size);

}  // namespace penstock
