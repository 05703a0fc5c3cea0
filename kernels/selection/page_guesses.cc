#include "kernels/selection/page_guesses.h"

#include <algorithm>
#include <utility>

namespace penstock {

void PageGuesses::BeginStep() { ++steps_; }

bool PageGuesses::Pays(int32_t layer) const {
  if (static_cast<size_t>(layer) >= layers_.size()) return false;
  const Layer& before = layers_[static_cast<size_t>(layer)];
  if (before.missing == 0 || before.missing * kMissingShare < before.chosen) return false;
  return right_ * 4 >= guessed_ * 3 || steps_ % kTrialSteps == 0;
}

PageGuesses::Layer& PageGuesses::Of(int32_t layer) {
  layers_.resize(std::max(layers_.size(), static_cast<size_t>(layer) + 1));
  return layers_[static_cast<size_t>(layer)];
}

void PageGuesses::OnGuessed(int32_t layer, std::vector<uint32_t> blocks, int64_t missing) {
  Of(layer).guessed = std::move(blocks);
  Of(layer).guessed_missing = missing;
}

void PageGuesses::OnChosen(int32_t layer, std::span<const uint32_t> blocks, int64_t missing) {
  Layer& now = Of(layer);
  now.chosen = std::ssize(blocks);
  now.missing = missing + std::exchange(now.guessed_missing, 0);
  guessed_ += std::ssize(now.guessed);
  right_ += std::ranges::count_if(
      now.guessed, [&](uint32_t block) { return std::ranges::binary_search(blocks, block); });
  now.guessed.clear();
  if (guessed_ <= kRemembered) return;
  guessed_ /= 2;
  right_ /= 2;
}

}  // namespace penstock
