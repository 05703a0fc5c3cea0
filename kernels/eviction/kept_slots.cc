#include "kernels/eviction/kept_slots.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>

#include "base/check.h"

namespace penstock {
namespace {

std::vector<float> Pooled(std::span<const float> scores, int64_t pool) {
  constexpr float kLeast = -std::numeric_limits<float>::infinity();
  std::vector<float> pooled(scores.size(), kLeast);
  const int64_t half = pool / 2, size = static_cast<int64_t>(scores.size());
  for (int64_t i = 0; i < size; ++i) {
    const int64_t end = std::min(size, i + half + 1);
    for (int64_t j = std::max<int64_t>(0, i - half); j < end; ++j) {
      if (scores[j] > pooled[i]) pooled[i] = scores[j];  // never NaN
    }
  }
  return pooled;
}

}  // namespace

std::vector<uint32_t> ChooseSlots(std::span<const float> scores, const KeepRule& rule) {
  PENSTOCK_CHECK_GE(rule.keep, rule.first + rule.last);
  PENSTOCK_CHECK_EQ(rule.pool % 2, 1);
  const auto slots = static_cast<int64_t>(scores.size());
  std::vector<uint32_t> kept(static_cast<size_t>(slots));
  std::iota(kept.begin(), kept.end(), 0u);
  if (slots <= rule.keep) return kept;
  const auto open = static_cast<size_t>(slots - rule.first - rule.last);
  const auto first = static_cast<size_t>(rule.first);
  // The leading slots that always stay take part in the pooling, as their neighbours do.
  const std::vector<float> pooled = Pooled(scores.first(first + open), rule.pool);
  const auto begin = kept.begin() + rule.first;
  const auto chosen = begin + (rule.keep - rule.first - rule.last);
  std::nth_element(begin, chosen, begin + static_cast<int64_t>(open), [&](uint32_t a, uint32_t b) {
    return pooled[a] != pooled[b] ? pooled[a] > pooled[b] : a < b;
  });
  std::sort(begin, chosen);
  kept.erase(chosen, begin + static_cast<int64_t>(open));
  return kept;
}

}  // namespace penstock
