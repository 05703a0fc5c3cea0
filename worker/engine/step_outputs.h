#pragma once

#include <span>
#include <vector>

#include "model/forward/model_runner.h"
#include "model/sampler/sampler.h"

namespace penstock {

// One sequence's output of a step: tokens that the runner drew, or logits.
struct StepOutput {
  std::span<float> logits;
  std::span<const DrawnToken> drawn;

  // Samples the next token of `sampler`, whose draw is the `index`-th draw of the sequence.
  // Overwrites the logits.
  SampledToken Sample(Sampler& sampler, size_t index = 0) const;
};

// Collects what an engine wants of a step and keeps the outputs. A runner that can draw tokens
// draws them if no logits are wanted, so that no logits have to reach the host. Used by the engine
// thread only.
class StepOutputs {
 public:
  explicit StepOutputs(ModelRunner& runner) : runner_(runner) {}

  // Requests the next tokens of `step`: by `draws`, or by logits if `draws` is empty or the runner
  // does not draw. `step` must stay in place, or be copied, until Run.
  void Want(SequenceStep& step, std::vector<DrawSpec> draws);
  // Runs a step. `args.sequences` has the wanted sequences in the order of their Want.
  absl::Status Run(StepArgs args);
  // The output of the `index`-th wanted sequence of the last step. Valid until the next Run.
  StepOutput at(size_t index);

 private:
  struct Wanted {
    std::vector<DrawSpec> draws;  // empty: logits
    size_t first = 0;             // index of its first draw, or of its row of logits
  };

  ModelRunner& runner_;
  bool ran_ = false;
  std::vector<Wanted> wanted_;
  std::vector<DrawnToken> drawn_;
  std::vector<float> logits_;
};

}  // namespace penstock
