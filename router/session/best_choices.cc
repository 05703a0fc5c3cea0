#include "router/session/best_choices.h"

#include <algorithm>
#include <numeric>

namespace penstock {

std::vector<uint32_t> BestChoices(std::span<const ChoiceScore> scores, uint32_t count) {
  const auto mean = [&](uint32_t choice) {
    const ChoiceScore& score = scores[choice];
    return score.tokens == 0 ? 0 : score.logprob / static_cast<double>(score.tokens);
  };
  std::vector<uint32_t> order(scores.size());
  std::iota(order.begin(), order.end(), 0);
  std::ranges::stable_sort(order, [&](uint32_t a, uint32_t b) { return mean(a) > mean(b); });
  order.resize(std::min<size_t>(count, order.size()));
  return order;
}

}  // namespace penstock
