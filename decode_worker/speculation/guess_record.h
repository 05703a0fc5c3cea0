#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <utility>
#include <vector>

#include "decode_worker/speculation/acceptance.h"

namespace penstock {

// The last guess of a drafter that computes its guesses, for one sequence, and how many of its
// guesses were right. One thread.
class GuessRecord {
 public:
  void Begin() { guess_.clear(), compared_ = 0; }
  void Add(uint32_t token) { guess_.push_back(token); }
  std::span<const uint32_t> guess() const { return guess_; }

  // Compares the sequence's next token with the guess. True if it was right, and is not the last.
  bool Observe(uint32_t token) {
    if (compared_ == guess_.size()) return false;
    const bool right = guess_[compared_++] == token;
    acceptance_.Add(right);
    ++counts_.all;
    counts_.right += right ? 1 : 0;
    if (!right) compared_ = guess_.size();
    return compared_ < guess_.size();
  }

  // The probability that a guess is right when those before it are. `prior` is that of other
  // sequences.
  double acceptance(double prior) const { return acceptance_.rate(prior, kPriorWeight); }
  void Skip() { acceptance_.Fade(kFadeSteps); }  // a step passed without a guess

  // Guesses that were compared since the last call, and those of them that were right.
  struct Compared {
    int all = 0;
    int right = 0;
  };
  Compared TakeCompared() { return std::exchange(counts_, {}); }

 private:
  static constexpr double kPriorWeight = 16;  // guesses
  static constexpr double kFadeSteps = 256;

  std::vector<uint32_t> guess_;
  size_t compared_ = 0;  // tokens of guess_
  Compared counts_;
  Acceptance acceptance_;
};

// The share of right guesses of such a drafter in all sequences. One thread.
class SharedAcceptance {
 public:
  double rate() const { return acceptance_.rate(kAssumed, kAssumedWeight); }
  // False while the rate is little more than assumed: at the start, and after a low rate has faded.
  bool known() const { return acceptance_.weight() >= kKnownGuesses; }
  void Count(const GuessRecord::Compared& compared) {
    for (int i = 0; i < compared.all; ++i) acceptance_.Add(i < compared.right);
  }
  void Skip() { acceptance_.Fade(kFadeSteps); }  // a step passed without any guess

 private:
  // The assumed acceptance of a drafter of which nothing is known, in guesses.
  static constexpr double kAssumed = 0.6, kAssumedWeight = 8;
  static constexpr double kKnownGuesses = 16;
  // The latest guesses, of which the rate is. If they were more, a drafter that has become bad
  // would be believed for too long.
  static constexpr double kWindow = 64;
  static constexpr double kFadeSteps = 1024;

  Acceptance acceptance_{kWindow};
};

}  // namespace penstock
