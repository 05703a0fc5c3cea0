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

// True for each slot in `first` or `spans`.
std::vector<bool> Leads(size_t slots, const KeepRule& rule) {
  std::vector<bool> leads(slots);
  const auto mark = [&](size_t begin, size_t end) {
    for (size_t i = begin; i < std::min(end, slots); ++i) leads[i] = true;
  };
  mark(0, static_cast<size_t>(rule.first));
  for (const SlotSpan& span : rule.spans) mark(span.begin, span.end);
  return leads;
}

}  // namespace

int64_t LeadingSlots(const KeepRule& rule) {
  int64_t slots = rule.first;
  for (const SlotSpan& span : rule.spans) {
    slots += std::max<int64_t>(0, span.end - std::max<int64_t>(span.begin, rule.first));
  }
  return slots;
}

KeepRule LaterRule(KeepRule rule) {
  rule.first = LeadingSlots(rule);
  rule.spans.clear();
  return rule;
}

std::vector<uint32_t> ChooseSlots(std::span<const float> scores, const KeepRule& rule) {
  PENSTOCK_CHECK_GE(rule.keep, LeadingSlots(rule) + rule.last);
  PENSTOCK_CHECK_EQ(rule.pool % 2, 1);
  const auto slots = static_cast<int64_t>(scores.size());
  std::vector<uint32_t> kept(static_cast<size_t>(slots));
  std::iota(kept.begin(), kept.end(), 0u);
  const std::vector<bool> leads = Leads(scores.size(), rule);
  const auto begin =
      std::stable_partition(kept.begin(), kept.end(), [&](uint32_t slot) { return leads[slot]; });
  if (slots <= rule.keep) return kept;
  const auto end = kept.end() - rule.last;
  // The leading slots take part in the pooling, as their neighbours do; the last ones do not.
  const auto pooled_slots = static_cast<size_t>(end == kept.end() ? slots : *end);
  const std::vector<float> pooled = Pooled(scores.first(pooled_slots), rule.pool);
  const auto chosen = begin + (rule.keep - (begin - kept.begin()) - rule.last);
  std::nth_element(begin, chosen, end, [&](uint32_t a, uint32_t b) {
    return pooled[a] != pooled[b] ? pooled[a] > pooled[b] : a < b;
  });
  std::sort(begin, chosen);
  kept.erase(chosen, end);
  return kept;
}

}  // namespace penstock
