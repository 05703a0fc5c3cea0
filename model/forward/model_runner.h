#pragma once

#include <cstdint>
#include <functional>
#include <span>

#include "base/status.h"
#include "kernels/paged_kv.h"
#include "kernels/view.h"
#include "model/sampler/drawn_token.h"

namespace penstock {

// What one sequence contributes to a step: `tokens` at positions [position, position + size).
struct SequenceStep {
  std::span<const uint32_t> tokens;  // at least one
  int32_t position = 0;              // keys and values of [0, position) are in the pages already
  std::span<const uint32_t> blocks;  // block table; covers position + tokens.size()
  bool wants_logits = false;         // of the last of `tokens`
  // Tokens that the runner is to draw from those logits; only where it draws_tokens().
  std::span<const DrawSpec> draws = {};

  bool wants_last() const { return wants_logits || !draws.empty(); }
};

struct StepArgs {
  std::span<const SequenceStep> sequences;
  PagedKv kv;
  View<float, 2> logits;             // [sequences that want logits, in their order][vocab]
  std::span<DrawnToken> drawn = {};  // of all draws, in their order
  // Called on the caller's thread as soon as the keys and values of layers [first, last) of every
  // token of the step are in the pages, in ascending order, while later layers are still to come.
  // Where no sequence has more than one token, a runner may call it once, for all, at the end.
  std::function<void(int32_t first_layer, int32_t last_layer)> on_layers_done;
  int32_t layers_per_group = 0;  // 0: one call, at the end
};

// A seam: runs one step of a model over a ragged batch. The logits of a sequence depend on its own
// tokens alone: not on the other sequences of the batch, not on how its tokens were cut into steps.
// One thread calls Step.
class ModelRunner {
 public:
  virtual ~ModelRunner() = default;
  virtual int32_t vocab() const = 0;
  virtual KvLayout kv_layout() const = 0;  // with the default block_tokens; callers may change that
  virtual int32_t max_position() const = 0;
  // Whether it draws tokens itself: those that DrawToken (token_draw.h) picks of the same logits.
  virtual bool draws_tokens() const { return false; }
  // INVALID_ARGUMENT for a token id or a position out of range.
  virtual absl::Status Step(const StepArgs& args) = 0;
};

}  // namespace penstock
