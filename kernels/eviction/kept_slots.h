#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace penstock {

// Which slots of one head stay.
struct KeepRule {
  int64_t keep = 0;   // slots; at least first + last
  int64_t first = 0;  // leading slots that stay whatever their score
  int64_t last = 0;   // last slots that stay whatever their score
  // Odd. A slot's score is the maximum over this many slots around it. It keeps neighbours
  // together, as SnapKV does.
  int64_t pool = 1;
};

// The slots that stay, ascending: `keep` of them, or all if there are fewer. Of equal scores the
// earlier slot stays, and NaN is less than every number. Pure.
std::vector<uint32_t> ChooseSlots(std::span<const float> scores, const KeepRule& rule);

}  // namespace penstock
