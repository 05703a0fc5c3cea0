#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "decode_worker/speculation/step_cost.h"

namespace penstock {

// A sequence's guess.
struct DraftOffer {
  int32_t tokens = 0;     // the maximum that a step may check
  double acceptance = 0;  // see SequenceDraft
};

// The number of tokens of each offer that the next step should check, at most `rows_max` in all. A
// row is added while it raises the expected tokens per second: greedy goodput, as in Liu et al.,
// "Optimizing Speculative Decoding for Serving Large Language Models Using Goodput" (arXiv
// 2406.14066). `offers` has one entry for each sequence of the step.
std::vector<int32_t> ChooseDraftLengths(std::span<const DraftOffer> offers, const StepCost& cost,
                                        int32_t rows_max);

}  // namespace penstock
