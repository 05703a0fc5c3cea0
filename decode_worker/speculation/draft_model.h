#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "base/clock.h"
#include "decode_worker/speculation/draft_context.h"
#include "decode_worker/speculation/step_cost.h"
#include "model/forward/model_runner.h"
#include "model/sampler/drawn_token.h"
#include "worker/engine/step_outputs.h"

namespace penstock {

// A guess that a step wants of one sequence.
struct DraftAsk {
  DraftContext* context = nullptr;
  std::vector<DrawSpec> draws;  // of each token of the guess
};

// A small model with the target's vocabulary that guesses tokens (Leviathan et al., arXiv
// 2211.17192; Chen et al., arXiv 2302.01318), and the KV of its sequences, which no other worker
// sees. A token is drawn from its logits with the random number of the target's own draw, so that
// equal distributions give equal tokens. Used by the engine's thread.
class DraftModel {
 public:
  // The maximum number of tokens of a sequence that a step of guesses computes.
  static constexpr uint32_t kPendingMax = 8;

  struct Options {
    int32_t step_tokens = 512;   // maximum of one step of the runner
    int32_t vocab = 0;           // the target's: no other token is guessed
    double relative_cost = 0.1;  // of its step to the target's, until steps were measured
  };
  // `runner`, `pool` and `clock` outlive it.
  DraftModel(ModelRunner& runner, BlockPool& pool, const Clock& clock, const Options& options)
      : runner_(runner), pool_(pool), clock_(clock), options_(options), outputs_(runner) {}

  // The maximum of tokens that a guess of `context` may have; 0 if the model does not know one of
  // its tokens.
  int32_t Longest(const DraftContext& context) const;
  // True if the KV is so far that one step gives the next token.
  static bool Ready(const DraftContext& context) { return context.pending() <= kPendingMax; }

  // The time of a step with the next token of each of some sequences. `target`: the target's.
  StepCost CostOf(const StepCost& target) const;
  // The time to compute the pending tokens of `context`.
  double CatchUpSeconds(const DraftContext& context, const StepCost& target) const;
  // True if the pool has room for the tokens of `context`, and some more.
  bool HasRoom(const DraftContext& context) const;
  // See DraftContext::SharePrompt.
  void SharePrompt(DraftContext& context, const DraftContext& other) {
    context.SharePrompt(other, pool_.view().layout.block_tokens);
  }
  // Computes pending tokens of `context`, as many as take about `seconds`. A context without room
  // loses its KV. An error is the runner's.
  absl::Status CatchUp(DraftContext& context, double seconds, const StepCost& target);

  // Sets the guess of each context. All are Ready and ask for at most Longest() tokens. A context
  // without room gets none and loses its KV. An error is the runner's.
  absl::Status Guess(std::span<DraftAsk> asks);

  // The share of right guesses in all sequences.
  double acceptance() const { return acceptance_.rate(); }
  bool acceptance_known() const { return acceptance_.known(); }
  // Counts the comparisons of a step.
  void Count(DraftContext& context) { acceptance_.Count(context.TakeCompared()); }
  void SkipGuesses();  // a step passed without any guess

 private:
  static constexpr int kForgetSteps = 1024;
  static constexpr size_t kRoomTokens = 64;    // behind a sequence whose KV is begun
  static constexpr double kCatchUpLeast = 16;  // tokens in a step

  double CatchUpSecondsPerToken(const StepCost& target) const;
  absl::Status GuessNext(std::span<DraftAsk* const> asks, size_t index);
  static SequenceStep NextStep(const DraftContext& context, size_t index);
  std::vector<DrawSpec> DrawsOf(const DrawSpec& draw) const;
  uint32_t TokenOf(const StepOutput& output, const DrawSpec& draw) const;

  ModelRunner& runner_;
  BlockPool& pool_;
  const Clock& clock_;
  const Options options_;
  StepOutputs outputs_;
  StepCost cost_;  // of steps of guesses
  // Of CatchUp, of which earlier calls count for less.
  double caught_up_tokens_ = 0;
  double caught_up_seconds_ = 0;
  SharedAcceptance acceptance_;
  int skipped_ = 0;  // steps without any guess since the last one
};

}  // namespace penstock
