#pragma once

#include "tests/cuda/cases/kv_pool_case.h"

namespace penstock::cuda {

struct EvictionCase {
  KvPoolCase::Options kv = {};  // of one layer's sequences; all have as many tokens
  int32_t group = 4;            // query heads of a KV head
  int32_t observed = 8;         // last tokens whose queries score keys
  float cap = 0;
};
enum class KeyScore { kNorm, kDifference, kAttention };

// The largest difference of a score of the first sequence from one in double precision, relative to
// the largest score; NaN if a score is.
double KeyScoreDeviation(KeyScore score, const EvictionCase& c);
// True if the sums of attention have the same bits when the queries come in two calls.
bool KeyAttentionIsTheSameInParts(const EvictionCase& c);
// True if `kept` slots of the first sequence, chosen at random, are in its own first slots, or in
// those of the second, with the bytes that they had.
bool MovedSlotsAreExact(const EvictionCase& c, int32_t kept, bool in_place);

}  // namespace penstock::cuda
