#include "decode_worker/speculation/mtp_drafter.h"

#include <algorithm>
#include <utility>

#include "base/check.h"
#include "model/sampler/token_draw.h"

namespace penstock {

StepCost MtpDrafter::CostOf(const StepCost& target) const {
  if (cost_.known()) return cost_;
  StepCost assumed;
  assumed.Add(1, options_.relative_cost * target.Seconds(1));
  return assumed;
}

absl::Status MtpDrafter::Run(std::span<MtpAsk> asks) {
  std::vector<MtpAsk*> open;
  for (MtpAsk& ask : asks) {
    ask.context->record().Begin();
    if (ask.draws.empty()) {
      ask.context->record().Skip();
    } else {
      open.push_back(&ask);
    }
  }
  if (open.empty()) SkipGuesses();
  RETURN_IF_ERROR(RunPending(asks));
  for (size_t index = 1; !open.empty(); ++index) {
    std::erase_if(open, [index](const MtpAsk* ask) { return ask->draws.size() == index; });
    if (!open.empty()) RETURN_IF_ERROR(GuessNext(open, index));
  }
  return absl::OkStatus();
}

// Computes the pending tokens, and the first token of each guess. Sequences that were not in the
// last steps may together have more pending tokens than a step takes.
absl::Status MtpDrafter::RunPending(std::span<MtpAsk> asks) {
  for (size_t next = 0; next < asks.size();) {
    std::vector<SequenceStep> steps;
    std::vector<MtpAsk*> guessing;
    int64_t tokens = 0;
    for (; next < asks.size(); ++next) {
      MtpAsk& ask = asks[next];
      const std::span<const uint32_t> pending = ask.context->pending();
      tokens += std::ssize(pending);
      if (tokens > options_.step_tokens) break;
      const bool guesses = !ask.draws.empty();
      if (guesses) guessing.push_back(&ask);
      steps.push_back({.tokens = pending,
                       .position = ask.position - static_cast<int32_t>(pending.size()) + 1,
                       .blocks = ask.blocks,
                       .wants_logits = guesses,
                       .hidden = guesses ? ask.context->own() : std::span<float>(),
                       .before = ask.context->before()});
    }
    PENSTOCK_CHECK(!steps.empty(), "a sequence has more pending tokens than a step takes");
    RETURN_IF_ERROR(RunSteps(steps, guessing, 0));
  }
  for (MtpAsk& ask : asks) ask.context->TakePending();
  return absl::OkStatus();
}

// Computes the last token of each guess, and draws the `index`-th one.
absl::Status MtpDrafter::GuessNext(std::span<MtpAsk* const> asks, size_t index) {
  std::vector<SequenceStep> steps;
  for (MtpAsk* const ask : asks) {
    steps.push_back({.tokens = ask->context->record().guess().last(1),
                     .position = ask->position + static_cast<int32_t>(index),
                     .blocks = ask->blocks,
                     .wants_logits = true,
                     .hidden = ask->context->own(),
                     .before = ask->context->own()});
  }
  return RunSteps(steps, asks, index);
}

absl::Status MtpDrafter::RunSteps(std::span<SequenceStep> steps, std::span<MtpAsk* const> guessing,
                                  size_t index) {
  const TimePoint begun = clock_.Now();
  const bool draws = runner_.draws_tokens();
  RETURN_IF_ERROR(draws ? DrawThere(steps, guessing, index) : DrawHere(steps, guessing, index));
  if (guessing.empty()) return absl::OkStatus();
  skipped_ = 0;
  cost_.Add(std::ssize(guessing), Milliseconds(clock_.Now() - begun) / 1000);
  return absl::OkStatus();
}

// Draws from the layer's logits.
absl::Status MtpDrafter::DrawHere(std::span<const SequenceStep> steps,
                                  std::span<MtpAsk* const> guessing, size_t index) {
  const auto vocab = static_cast<size_t>(runner_.vocab());
  logits_.resize(std::max(logits_.size(), guessing.size() * vocab));
  RETURN_IF_ERROR(runner_.mtp()->StepMtp(
      {.sequences = steps,
       .kv = pages_,
       .logits = {logits_.data(), {std::ssize(guessing), runner_.vocab()}}}));
  for (size_t i = 0; i < guessing.size(); ++i) {
    MtpAsk& ask = *guessing[i];
    ask.context->record().Add(
        DrawToken(std::span(logits_).subspan(i * vocab, vocab), ask.draws[index]));
  }
  return absl::OkStatus();
}

// Lets the runner draw, so that no logits leave its device.
absl::Status MtpDrafter::DrawThere(std::span<SequenceStep> steps, std::span<MtpAsk* const> guessing,
                                   size_t index) {
  auto next = guessing.begin();
  for (SequenceStep& step : steps) {
    if (!std::exchange(step.wants_logits, false)) continue;
    step.draws = std::span(std::as_const((*next++)->draws)).subspan(index, 1);
  }
  drawn_.assign(guessing.size(), {});
  RETURN_IF_ERROR(runner_.mtp()->StepMtp({.sequences = steps, .kv = pages_, .drawn = drawn_}));
  for (size_t i = 0; i < guessing.size(); ++i) {
    guessing[i]->context->record().Add(drawn_[i].id);
  }
  return absl::OkStatus();
}

// Also forgets the measured times, so that one that was too long does not keep guesses away for
// ever.
void MtpDrafter::SkipGuesses() {
  acceptance_.Skip();
  if (++skipped_ < kForgetSteps) return;
  skipped_ = 0;
  cost_ = {};
}

}  // namespace penstock
