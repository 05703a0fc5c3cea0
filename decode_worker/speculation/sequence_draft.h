#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "decode_worker/speculation/acceptance.h"
#include "decode_worker/speculation/ngram_index.h"

namespace penstock {

// Guesses the next tokens of one sequence from its own prompt and answer. Every guess is compared
// with the token that was drawn, checked by a step or not, so the acceptance costs no step. One
// thread.
class SequenceDraft {
 public:
  // `tokens`: the sequence so far. `tokens_max`: the longest that it can become.
  SequenceDraft(std::span<const uint32_t> tokens, size_t tokens_max);

  // Records the sequence's next token.
  void Observe(uint32_t token);
  // Guesses at most `count` tokens.
  void Guess(size_t count);

  // The last guess. Valid until Observe.
  std::span<const uint32_t> guess() const { return guess_; }
  // The probability that a token of the guess is right when those before it are.
  double acceptance() const { return class_of_guess().rate(); }

 private:
  // Longer matches are right more often, so each class of lengths has its own rate.
  const Acceptance& class_of_guess() const { return acceptance_[class_]; }

  NgramIndex index_;
  std::vector<uint32_t> guess_;
  size_t compared_ = 0;  // tokens of guess_
  size_t class_ = 0;
  std::array<Acceptance, 3> acceptance_;
};

}  // namespace penstock
