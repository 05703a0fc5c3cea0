#pragma once

#include <array>
#include <atomic>
#include <functional>
#include <map>
#include <optional>
#include <random>
#include <span>
#include <vector>

#include "base/progress.h"
#include "decode_worker/engine/decode_sequence.h"
#include "decode_worker/speculation/draft_lengths.h"
#include "decode_worker/speculation/draft_model.h"
#include "decode_worker/speculation/draft_trial.h"
#include "decode_worker/speculation/mtp_drafter.h"
#include "decode_worker/speculation/step_cost.h"

namespace penstock {

// The part of a decode engine that guesses the next tokens of its sequences, from their own tokens,
// with a draft model and with the target's layer for multi-token prediction (MTP), and chooses how
// many of them a step checks. A guess is checked by one more row of the step, whose token is drawn
// as it would be without the guess, so that answers do not change (docs/adr/0046-speculation.md).
// Used by the engine's thread, except where noted.
class Speculator {
 public:
  struct Options {
    int32_t tokens = 0;            // of a sequence, guessed for one step; 0: none
    int32_t rows = 0;              // guesses of a step
    bool ngrams = true;            // guess from the sequence's own tokens
    bool random = false;           // for tests: check any number of guesses
    DraftModel* draft = nullptr;   // outlives the speculator; null: there is none
    MtpDrafter* mtp = nullptr;     // likewise
    Progress* progress = nullptr;  // beats with every step of the draft model; may be null
  };
  using Sequences = std::map<uint64_t, DecodeSequence>;  // by id

  // The sequences of one step, for Plan.
  struct Batch {
    std::span<const uint64_t> ids;  // of the step's sequences
    Sequences& sequences;           // all that run
    // Gives a sequence room for `more` tokens behind its last one; false: there is none.
    const std::function<bool(DecodeSequence& sequence, int32_t more)>& grow;
  };

  explicit Speculator(const Options& options)
      : options_(options), draft_(options.draft), mtp_(options.mtp) {}

  bool on() const { return options_.tokens > 0; }
  // True if guesses may come from a model or a layer, which a plan computes.
  bool ComputesGuesses() const { return draft_ != nullptr || mtp_ != nullptr; }
  // Begins a sequence. `tokens` are those before its last token, and `hidden` is the model's hidden
  // state behind them; empty: it is not known.
  void Begin(DecodeSequence& sequence, std::span<const uint32_t> tokens,
             std::span<const float> hidden) const;
  // Chooses the guesses that the next step checks.
  void Plan(const Batch& batch);
  // Prepares a step that checks no guesses.
  void PlanNone(const Batch& batch);
  // A step has ended. `seconds`: what its `rows` rows took, guesses included; nullopt: it computed
  // a prompt's tokens, too.
  void EndStep(int64_t rows, std::optional<double> seconds);
  // Forgets the guesses of a step that has checked them: all tokens that it gave the sequence but
  // the last were guessed right. Returns the number of wrong guesses.
  uint32_t CountChecked(DecodeSequence& sequence, size_t tokens);

  // Guesses that were checked, and those of them that were right, since the start. Any thread.
  int64_t checked(Drafter by) const { return CountsOf(by).checked; }
  int64_t right(Drafter by) const { return CountsOf(by).right; }

 private:
  struct Counts {
    std::atomic<int64_t> checked{0};
    std::atomic<int64_t> right{0};
  };

  // Sequences that the draft model may compute.
  struct Wishes {
    std::vector<DraftWish> wishes;
    std::vector<DecodeSequence*> sequences;  // of the wishes
  };

  const Counts& CountsOf(Drafter by) const { return counts_[static_cast<size_t>(by)]; }
  void ClearGuesses(const Batch& batch) const;
  DraftOffers OffersOf(DecodeSequence& sequence) const;
  DraftPlan Choose(std::span<const DraftOffers> offers, const DraftCosts& costs);
  int32_t GuessesMax(const DecodeSequence& sequence) const;
  static void TakeGuesses(const Batch& batch, DecodeSequence& sequence, const DraftChoice& choice);

  // speculator_model.cc: the draft model.
  DraftPlan PlanWithModel(const Batch& batch, std::vector<DraftOffers> offers);
  void CatchUpOne(const Batch& batch, std::span<const DraftOffers> offers, const StepCost& model);
  Wishes WishesOf(const Batch& batch, const DraftPlan& plan, double step) const;
  void CatchUp(const Batch& batch, DraftContext& context, double seconds);
  bool CatchUpPays(const DecodeSequence& sequence, double saved, double step) const;
  static double TokensToCome(const DecodeSequence& sequence);
  bool BeginCatchUp(const Batch& batch, DecodeSequence& sequence);
  void GuessByModel(const Batch& batch, std::span<const DraftChoice> choices);
  void StopModel(Sequences& sequences, const absl::Status& status);

  // speculator_mtp.cc: the layer for MTP.
  DraftPlan PlanWithMtp(const Batch& batch, std::span<DraftOffers> offers);
  void GuessByMtp(const Batch& batch, std::span<const DraftChoice> choices);
  void StopMtp(Sequences& sequences, const absl::Status& status);
  static std::vector<DrawSpec> DrawsOf(const Sampler& sampler, int32_t count);
  void Beat() const;

  // The target's steps before other times are compared with theirs.
  static constexpr int64_t kFirstSteps = 4;

  const Options options_;
  DraftModel* draft_;  // null: there is none, or it has failed
  MtpDrafter* mtp_;    // likewise
  StepCost cost_;      // of the target's steps
  DraftTrial trial_;
  int64_t steps_ = 0;
  std::mt19937 random_{1};                // for Options::random only
  std::array<Counts, kDrafters> counts_;  // by Drafter
};

}  // namespace penstock
