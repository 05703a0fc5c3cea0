#pragma once

#include <compare>
#include <optional>
#include <vector>

#include "router/placement/placement.h"

namespace penstock {

// One worker of a pair, scored on its own: the costs of the two sides add up.
struct ScoredWorker {
  size_t index = 0;
  PlacementTerms terms;
  int failures = 0;
  bool hot = false;      // a hot spot: its queue is far longer than the mean
  bool no_room = false;  // the request would wait for free blocks
  uint32_t cached_tokens = 0;
  std::optional<PrefixFetch> fetch;
};

// The rank of a pair before cost; less is better.
struct Standing {
  int failures = 0;
  int faults = 0;  // sum of 4: no room, 2: over the TTFT limit, 1: hot spot
  auto operator<=>(const Standing&) const = default;
};

// The workers of `format` that can take the request, with their scores. Pure.
std::vector<ScoredWorker> ScorePrefill(const PlacementInput& input, const KvFormat& format);
std::vector<ScoredWorker> ScoreDecode(const PlacementInput& input, const KvFormat& format);

// The expected time of the prefill: `cached` tokens are cached with the probability
// worker.cached.hit_probability, and none otherwise.
double ExpectedPrefillMs(const Candidate& worker, const PlacementNeed& need, uint32_t cached);
// True when the prompt fits in the worker's context length.

bool LongEnough(const Candidate& worker, const PlacementNeed& need);
// True when the worker's pool, once empty, can hold the prompt and one token of each choice.
bool BigEnough(const Candidate& worker, const PlacementNeed& need);

}  // namespace penstock
