#include "kernels/selection/page_guesses.h"

#include <algorithm>
#include <utility>

namespace penstock {
namespace {

Duration Median(std::vector<Duration>& times) {
  const auto middle = times.begin() + std::ssize(times) / 2;
  std::nth_element(times.begin(), middle, times.end());
  return *middle;
}

}  // namespace

void PageGuesses::BeginStep(int64_t rows, TimePoint now) {
  begun_ = now;
  if (kept_ > 0) {
    --kept_;
    return;
  }
  if (rows != rows_) BeginTrial(rows);
  guesses_ = without_.size() > with_.size();
}

void PageGuesses::BeginTrial(int64_t rows) {
  rows_ = rows;
  without_.clear();
  with_.clear();
}

void PageGuesses::EndStep(TimePoint now) {
  if (kept_ > 0) return;
  // Guesses save no time while all pages are in memory, so such steps are not compared.
  if (!AnyMissing()) return BeginTrial(rows_);
  (guesses_ ? with_ : without_).push_back(now - begun_);
  if (with_.size() < kTrialSteps) return;
  guesses_ = Median(with_) < Median(without_);
  kept_ = kKeptSteps;
  BeginTrial(0);
}

bool PageGuesses::AnyMissing() const { return std::ranges::any_of(layers_, &Layer::ReadsMany); }

bool PageGuesses::Pays(int32_t layer) const {
  const auto index = static_cast<size_t>(layer);
  return guesses_ && index < layers_.size() && layers_[index].ReadsMany();
}

PageGuesses::Layer& PageGuesses::Of(int32_t layer) {
  layers_.resize(std::max(layers_.size(), static_cast<size_t>(layer) + 1));
  return layers_[static_cast<size_t>(layer)];
}

void PageGuesses::OnChosen(int32_t layer, int64_t chosen, int64_t missing) {
  Layer& now = Of(layer);
  now.chosen = chosen;
  now.missing = missing + std::exchange(now.guessed_missing, 0);
}

}  // namespace penstock
