#pragma once

#include <cstddef>
#include <cstdint>
#include <random>
#include <span>
#include <vector>

#include "decode_worker/speculation/step_cost.h"

namespace penstock {

// This room (decode_worker/speculation) guesses the next tokens of answers and decides how many of
// them a step checks. It knows token ids, times, a draft model with its KV, and the target's layer
// for multi-token prediction (MTP). It does not know sessions or the target's other layers; a guess
// is never more than a hint, because the engine draws every token itself.

// The source of a sequence's guesses.
enum class Drafter { kNgram, kModel, kMtp };
inline constexpr size_t kDrafters = 3;

// A sequence's guess.
struct DraftOffer {
  int32_t tokens = 0;     // the maximum that a step may check
  double acceptance = 0;  // see SequenceDraft and GuessRecord
};

// A sequence's guesses, of which a step checks those of one drafter.
struct DraftOffers {
  DraftOffer ngram;
  DraftOffer model;
  DraftOffer mtp = {};
};

// The times of steps: of the target model, and of the draft model or of the layer for MTP for one
// token of each of some sequences (null: there is none).
struct DraftCosts {
  const StepCost& target;
  const StepCost* model = nullptr;
  const StepCost* mtp = nullptr;
};

struct DraftChoice {
  Drafter drafter = Drafter::kNgram;
  int32_t tokens = 0;
};

struct DraftPlan {
  std::vector<DraftChoice> choices;  // of each sequence
  double saved = 0;                  // the expected share of the time that a token takes
};

// The number of tokens of each offer that the next step should check, at most `rows_max` in all. A
// row is added while it raises the expected tokens per second: greedy goodput, as in Liu et al.,
// "Optimizing Speculative Decoding for Serving Large Language Models Using Goodput" (arXiv
// 2406.14066). A guess of the draft model, or of the layer for MTP, costs a part of its step, too.
// `offers` has one entry for each sequence of the step.
DraftPlan ChooseDrafts(std::span<const DraftOffers> offers, const DraftCosts& costs,
                       int32_t rows_max);

// For tests: any drafter and any number of tokens within each offer and `rows_max`.
DraftPlan RandomDrafts(std::span<const DraftOffers> offers, int32_t rows_max, std::mt19937& random);

}  // namespace penstock
