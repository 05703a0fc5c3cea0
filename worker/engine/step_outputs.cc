#include "worker/engine/step_outputs.h"

#include <algorithm>
#include <utility>

namespace penstock {

SampledToken StepOutput::Sample(Sampler& sampler, size_t index) const {
  return drawn.empty() ? sampler.Sample(logits) : sampler.Take(drawn[index]);
}

void StepOutputs::Want(SequenceStep& step, std::vector<DrawSpec> draws) {
  if (std::exchange(ran_, false)) wanted_.clear();
  if (!runner_.draws_tokens()) draws.clear();
  Wanted& wanted = wanted_.emplace_back(Wanted{.draws = std::move(draws)});
  step.draws = wanted.draws;  // the vector's buffer stays in place when `wanted` moves
  step.wants_logits = wanted.draws.empty();
}

absl::Status StepOutputs::Run(StepArgs args) {
  if (std::exchange(ran_, true)) wanted_.clear();
  size_t rows = 0, draws = 0;
  for (Wanted& wanted : wanted_) {
    wanted.first = wanted.draws.empty() ? rows++ : draws;
    draws += wanted.draws.size();
  }
  const auto vocab = static_cast<size_t>(runner_.vocab());
  logits_.resize(std::max(logits_.size(), rows * vocab));
  drawn_.resize(draws);
  args.logits = {logits_.data(), {static_cast<int64_t>(rows), runner_.vocab()}};
  args.drawn = drawn_;
  return runner_.Step(args);
}

StepOutput StepOutputs::at(size_t index) {
  const Wanted& wanted = wanted_[index];
  if (!wanted.draws.empty()) {
    return {.logits = {}, .drawn = std::span(drawn_).subspan(wanted.first, wanted.draws.size())};
  }
  const auto vocab = static_cast<size_t>(runner_.vocab());
  return {.logits = std::span(logits_).subspan(wanted.first * vocab, vocab), .drawn = {}};
}

}  // namespace penstock
