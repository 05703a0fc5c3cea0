#pragma once

#include <span>
#include <vector>

#include "model/forward/model_runner.h"
#include "model/sampler/sampler.h"

namespace penstock {

// What a step gave for one sequence: tokens that the runner drew, or logits.
struct StepOutput {
  std::span<float> logits;
  std::span<const DrawnToken> drawn;

  // The next token of `sampler`, whose draw is the `index`-th of the sequence's. Overwrites the
  // logits.
  SampledToken Sample(Sampler& sampler, size_t index = 0) const;
};

// What the sequences of an engine's steps are asked for, and where the answers are: tokens are
// drawn by a runner that can where nothing but them is wanted, so that no logits have to reach the
// host. The engine thread's own.
class StepOutputs {
 public:
  explicit StepOutputs(ModelRunner& runner) : runner_(runner) {}

  // Has `step` give the next tokens: by `draws`, or logits where there are none or the runner does
  // not draw. `step` stays where it is, or is copied, until Run.
  void Want(SequenceStep& step, std::vector<DrawSpec> draws);
  // Runs a step of `args.sequences`, of which those that were wanted come in that order.
  absl::Status Run(StepArgs args);
  // Of the `index`-th that was wanted for the step that ran last. Valid until the next Run.
  StepOutput at(size_t index);

 private:
  struct Wanted {
    std::vector<DrawSpec> draws;  // empty: logits
    size_t first = 0;             // of its draws, or its row of logits
  };

  ModelRunner& runner_;
  bool ran_ = false;
  std::vector<Wanted> wanted_;
  std::vector<DrawnToken> drawn_;
  std::vector<float> logits_;
};

}  // namespace penstock
