#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "base/clock.h"
#include "decode_worker/speculation/guess_record.h"
#include "decode_worker/speculation/mtp_context.h"
#include "decode_worker/speculation/step_cost.h"
#include "model/forward/model_runner.h"
#include "model/sampler/drawn_token.h"

namespace penstock {

// A sequence of a step, for MtpDrafter.
struct MtpAsk {
  MtpContext* context = nullptr;
  int32_t position = 0;  // of its last token
  std::span<const uint32_t> blocks;
  std::vector<DrawSpec> draws;  // of each token of the guess; empty: no guess
};

// Guesses tokens with the target's layer for multi-token prediction (DeepSeek-V3, arXiv 2412.19437,
// section 5.4.3). The keys and values of the layer are in the target's pages. A further guess takes
// the layer's own hidden state in the place of the model's, as with EAGLE (arXiv 2401.15077). Its
// keys and values are overwritten when the guess was checked. A token is drawn from the layer's
// logits with the random number of the target's own draw. Used by the engine's thread.
class MtpDrafter {
 public:
  struct Options {
    int64_t step_tokens = 512;   // maximum of one step of the runner
    double relative_cost = 0.1;  // of its step to the target's, until steps were measured
  };
  // `runner` has mtp(). Both outlive the drafter, and so do the pages.
  MtpDrafter(ModelRunner& runner, const PagedKv& pages, const Clock& clock, const Options& options)
      : runner_(runner), pages_(pages), clock_(clock), options_(options) {}

  size_t hidden_size() const { return static_cast<size_t>(runner_.hidden_size()); }
  // The time of a step with the next token of each of some sequences. `target`: the target's.
  StepCost CostOf(const StepCost& target) const;

  // Computes the keys and values of the pending tokens of all sequences, and the guesses of those
  // that have draws. Blocks cover one token less than the guess behind the last token. An error is
  // the runner's.
  absl::Status Run(std::span<MtpAsk> asks);

  double acceptance() const { return acceptance_.rate(); }
  // Counts the comparisons of a step.
  void Count(MtpContext& context) { acceptance_.Count(context.record().TakeCompared()); }

 private:
  static constexpr int kForgetSteps = 1024;

  absl::Status RunPending(std::span<MtpAsk> asks);
  absl::Status GuessNext(std::span<MtpAsk* const> asks, size_t index);
  // The steps with logits are those of the `guessing`, in order; they draw their `index`-th tokens.
  absl::Status RunSteps(std::span<SequenceStep> steps, std::span<MtpAsk* const> guessing,
                        size_t index);
  absl::Status DrawHere(std::span<const SequenceStep> steps, std::span<MtpAsk* const> guessing,
                        size_t index);
  absl::Status DrawThere(std::span<SequenceStep> steps, std::span<MtpAsk* const> guessing,
                         size_t index);
  void SkipGuesses();

  ModelRunner& runner_;
  const PagedKv pages_;
  const Clock& clock_;
  const Options options_;
  std::vector<float> logits_;
  std::vector<DrawnToken> drawn_;  // by the runner
  StepCost cost_;                  // of steps of guesses
  SharedAcceptance acceptance_;
  int skipped_ = 0;  // steps without any guess since the last one
};

}  // namespace penstock
