#pragma once

#include <compare>
#include <optional>
#include <vector>

#include "router/placement/placement.h"

namespace penstock {

// One side of a pair, scored on its own: costs of the two sides add up.
struct ScoredWorker {
  size_t index = 0;
  PlacementTerms terms;
  int failures = 0;
  bool hot = false;      // its queue is far above the others'
  bool no_room = false;  // waits for blocks
  uint32_t cached_tokens = 0;
  std::optional<PrefixFetch> fetch;
};

// What comes before cost; less is better.
struct Standing {
  int failures = 0;
  int faults = 0;  // no room, then over the limit, then a hot spot
  auto operator<=>(const Standing&) const = default;
};

// Workers of `format` that could take it.
std::vector<ScoredWorker> ScorePrefill(const PlacementInput& input, const KvFormat& format);
std::vector<ScoredWorker> ScoreDecode(const PlacementInput& input, const KvFormat& format);

// The prefill that is to be expected: all of what is said to be there, or nothing, by its trust.
double ExpectedPrefillMs(const Candidate& worker, const PlacementNeed& need, uint32_t cached);

bool LongEnough(const Candidate& worker, const PlacementNeed& need);
// Whether it could ever hold the prompt and one more token of each choice.
bool BigEnough(const Candidate& worker, const PlacementNeed& need);

}  // namespace penstock
