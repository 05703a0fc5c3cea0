#pragma once

namespace penstock {

// The share of guesses that were right, of about the last `window`.
class Acceptance {
 public:
  explicit Acceptance(double window = 32) : keep_(1 - 1 / window) {}

  void Add(bool right) {
    right_ = right_ * keep_ + (right ? 1 : 0);
    all_ = all_ * keep_ + 1;
  }
  // The guesses so far count for less from now on, by a share of 1 / `steps`: call it where no
  // guess is made, so that a low rate does not keep guesses away for ever.
  void Fade(double steps) {
    right_ -= right_ / steps;
    all_ -= all_ / steps;
  }
  // `prior`: the rate before any guess, which counts as `weight` guesses.
  double rate(double prior = 0.5, double weight = 1) const {
    return (right_ + prior * weight) / (all_ + weight);
  }
  // The number of guesses that count.
  double weight() const { return all_; }

 private:
  double keep_;
  double right_ = 0;
  double all_ = 0;
};

}  // namespace penstock
