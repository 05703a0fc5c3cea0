#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace penstock {

// The sum of the log-probabilities of a choice's tokens, and their number.
struct ChoiceScore {
  double logprob = 0;
  uint64_t tokens = 0;
};

// The `count` choices with the highest mean log-probability of their tokens, best first; equal ones
// by their number. Pure.
std::vector<uint32_t> BestChoices(std::span<const ChoiceScore> scores, uint32_t count);

}  // namespace penstock
