#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace penstock {

// The slots [begin, end).
struct SlotSpan {
  uint32_t begin = 0;
  uint32_t end = 0;
};

// Which slots of one head stay.
struct KeepRule {
  int64_t keep = 0;   // slots; at least LeadingSlots + last
  int64_t first = 0;  // leading slots that stay whatever their score
  int64_t last = 0;   // of the other slots, the last ones, which stay whatever their score
  // Odd. A slot's score is the maximum over this many slots around it. It keeps neighbours
  // together, as SnapKV does.
  int64_t pool = 1;
  // Further slots that stay whatever their score, ascending. They are moved behind the `first`
  // ones, so that the next eviction finds them there.
  std::vector<SlotSpan> spans = {};
};

// The number of slots in `first` and `spans`.
int64_t LeadingSlots(const KeepRule& rule);
// The rule of a later eviction of what `rule` kept.
KeepRule LaterRule(KeepRule rule);

// The slots that stay: the leading ones, then others, each ascending. `keep` of them, or all if
// there are fewer. Of equal scores the earlier slot stays, and NaN is less than every number. Pure.
std::vector<uint32_t> ChooseSlots(std::span<const float> scores, const KeepRule& rule);

}  // namespace penstock
