#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "base/status.h"

namespace penstock {

// Workers of one format can hand KV to each other and give the same tokens.
struct KvFormat {
  uint64_t model_fingerprint = 0;
  uint64_t layout_fingerprint = 0;
  uint32_t block_tokens = 0;
  bool operator==(const KvFormat&) const = default;
};

// A worker that is ready, as placement sees it: what it reported last, and what has been booked on
// it since.
struct Candidate {
  KvFormat format;
  uint32_t max_model_len = 0;  // 0: not said
  uint64_t waiting_tokens = 0;
  uint64_t blocks_total = 0;
  uint64_t blocks_taken = 0;  // used, promised or booked
  uint32_t requests = 0;      // waiting, running or booked
  uint32_t waiting = 0;       // requests
  int failures = 0;           // of this session on this worker, weighed
};

struct PlacementNeed {
  uint32_t prompt_tokens = 0;  // to prefill
  uint32_t answer_tokens = 0;  // at most, a choice
  uint32_t choices = 1;
  std::optional<KvFormat> format;  // a session that has answered already stays with its format
};

struct PlacementInput {
  std::vector<Candidate> prefill;
  std::vector<Candidate> decode;
  size_t prefill_known = 0;  // ready or not
  size_t decode_known = 0;
  PlacementNeed need;
  uint64_t random = 0;  // breaks ties
};

struct WorkerPair {
  size_t prefill = 0;  // index into PlacementInput::prefill
  size_t decode = 0;
};

// A worker with this many requests waiting takes no more.
inline constexpr uint32_t kMaxWaitingPerWorker = 256;

// Blocks that the whole answer takes at most.
uint64_t BlocksNeeded(const PlacementNeed& need, uint32_t block_tokens);

// The pair of equal format with the least expected wait: the fewest tokens to prefill before ours,
// then a decode worker that has room at once and the fewest requests beside ours. Workers that
// failed this session come last. UNAVAILABLE when no pair is ready, RESOURCE_EXHAUSTED when all
// are full. Pure.
absl::StatusOr<WorkerPair> Place(const PlacementInput& input);

}  // namespace penstock
