#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "base/status.h"
#include "router/placement/cost_models.h"

namespace penstock {

// Workers of one format can hand KV to each other and give the same tokens.
struct KvFormat {
  uint64_t model_fingerprint = 0;
  uint64_t layout_fingerprint = 0;
  uint32_t block_tokens = 0;
  bool operator==(const KvFormat&) const = default;
};

// What a worker has of the prompt: leading tokens, and how many of them are in a slower tier.
struct CachedPrefix {
  uint32_t tokens = 0;
  uint32_t dram_tokens = 0;
  uint32_t nvme_tokens = 0;
  uint32_t expected_tokens = 0;  // the worker has not said so yet
  double trust = 1;              // how likely it is all still there, 0..1
};

// A worker that is ready, as placement sees it: what it reported last, and what has been booked on
// it since.
struct Candidate {
  KvFormat format;
  uint32_t max_model_len = 0;  // 0: not said
  double queue_ms = 0;         // until a prompt that comes now is begun (prefill)
  double recent_ms = 0;        // work sent to it lately (prefill)
  double lasting_ms = 0;       // and over a longer time
  CachedPrefix cached;
  PrefillModel prefill;
  MoveModel dram;  // from that tier to the device
  MoveModel nvme;
  MoveModel link;  // what a handoff takes after the last token is computed, of tokens that move
  std::optional<MoveModel> pull;  // from another worker's store; nullopt: it cannot
  uint64_t blocks_total = 0;
  uint64_t blocks_taken = 0;  // used, promised or booked
  uint32_t requests = 0;      // waiting, running or booked
  uint32_t waiting = 0;       // requests
  double context_tokens = 0;  // of running sequences (decode)
  StepModel step;             // decode
  // What a decode worker computes of a prompt itself, in tokens: at most, and in each step. 0:
  // none.
  uint32_t local_prefill_max_tokens = 0;
  uint32_t prefill_chunk = 0;
  int failures = 0;  // of this session on this worker, weighed
};

// A worker from whose store others can read, whether or not it takes prompts itself.
struct PrefixSource {
  KvFormat format;
  CachedPrefix cached;
  MoveModel dram;  // from that tier to its device pages
  MoveModel nvme;
};

struct PlacementNeed {
  uint32_t prompt_tokens = 0;  // to prefill
  uint32_t answer_tokens = 0;  // at most, a choice
  uint32_t choices = 1;
  std::optional<KvFormat> format;  // a session that has answered already stays with its format
  double ttft_limit_ms = 0;        // from now; 0: none
  bool may_stay = false;           // a decode worker may compute the prompt's end itself
};

// What weighs how much. Others' milliseconds count less or more than this request's own.
struct PlacementPolicy {
  // Work that is computed here delays everybody who comes after it, and a prefix that is computed
  // twice does so for nothing: each ms of work counts so many ms more. Less for what many workers
  // have already.
  double queueing_cost_weight = 5;
  // Keeps workers evenly busy over minutes, so that a hot prefix is computed on more of them: what
  // a worker was sent lately above the mean, times this.
  double balance_weight = 0.2;
  // And over longer: what a worker was sent above the mean and this share of it, times that. Where
  // everybody begins with one prompt and nobody waits, nothing else makes another copy of it.
  double lasting_slack = 0.08;
  double lasting_weight = 1;
  // A ms that this request takes from every running sequence, summed over its answer.
  double decode_interference_weight = 0.1;
  // Workers whose queue is longer than so many times the mean, and `hot_spot_ms` more, are left out
  // while there are others.
  double hot_spot_factor = 4;
  double hot_spot_ms = 500;
  // Of decode workers that are as fast, the one with more free blocks: a full one costs this more.
  double fullness_ms = 2;
  // Workers whose cost is this close to that of the best of their side are equals, of which chance
  // takes one.
  double tie_fraction = 0.005;
};

struct PlacementInput {
  std::vector<Candidate> prefill;
  std::vector<Candidate> decode;
  std::vector<PrefixSource> sources;
  size_t prefill_known = 0;  // ready or not
  size_t decode_known = 0;
  PlacementNeed need;
  PlacementPolicy policy;
  uint64_t random = 0;  // breaks ties
  size_t explain = 0;   // how many scored pairs to return
};

struct WorkerPair {
  static constexpr size_t kNone = SIZE_MAX;
  size_t prefill = 0;  // index into PlacementInput::prefill; kNone: the decode worker computes it
  size_t decode = 0;
};

// What one pair would cost, in ms.
struct PlacementTerms {
  // Of this request's time to the first token:
  double queue_ms = 0;
  double prefill_ms = 0;  // of what is not cached
  double restore_ms = 0;  // from lower tiers
  double fetch_ms = 0;    // from another worker's store
  // Of its second token:
  double transfer_ms = 0;
  double decode_ms = 0;  // the first step there
  double held_ms = 0;    // of transfer_ms, what the decode worker's cache saves; 0 or below
  // Of others' time, weighed:
  double behind_ms = 0;
  double balance_ms = 0;  // below 0 on a worker that was given little
  double harm_ms = 0;

  double ttft_ms() const { return queue_ms + prefill_ms + restore_ms + fetch_ms; }
  // The two sides' parts of it.
  double prefill_cost_ms() const { return ttft_ms() + transfer_ms + behind_ms + balance_ms; }
  double decode_cost_ms() const { return decode_ms + held_ms + harm_ms; }
  double cost_ms() const { return prefill_cost_ms() + decode_cost_ms(); }
};

// What the prefill worker reads from another one's store before it computes the rest.
struct PrefixFetch {
  size_t source = 0;       // index into PlacementInput::sources
  uint32_t tokens = 0;     // beyond those that it has itself
  double computed_ms = 0;  // what computing them would take
};

struct ScoredPair {
  enum class Verdict { kChosen, kTied, kDearer, kHotSpot, kOverLimit, kFailedBefore, kNoRoom };
  WorkerPair workers;
  PlacementTerms terms;
  std::optional<PrefixFetch> fetch;
  Verdict verdict = Verdict::kDearer;
};

struct Placement {
  WorkerPair workers;
  PlacementTerms terms;
  uint32_t cached_tokens = 0;  // that will not be computed
  uint32_t held_tokens = 0;    // that need not move to the decode worker
  std::optional<PrefixFetch> fetch;
  std::vector<ScoredPair> scored;  // the chosen one, then by cost
};

// A worker with this many requests waiting takes no more.
inline constexpr uint32_t kMaxWaitingPerWorker = 256;

// Blocks that the whole answer takes at most.
uint64_t BlocksNeeded(const PlacementNeed& need, uint32_t block_tokens);

// The decode worker of need.format that costs least for a sequence that is running already and
// moves there: an index into PlacementInput::decode. UNAVAILABLE when there is none. Pure.
absl::StatusOr<size_t> PlaceTarget(const PlacementInput& input);

// The pair of equal format that costs least, or a decode worker alone that has so much of the
// prompt that computing the rest there costs less. Before cost come: fewer failures of this
// session, a decode worker with room at once, a queue that is no hot spot, and the limit. Of fleets
// with more than 16 workers a side, the best 16 of each side are paired. UNAVAILABLE when no pair
// is ready; RESOURCE_EXHAUSTED when all are full, or none can keep the limit, with an ErrorDetail
// that says when to try again. Pure.
absl::StatusOr<Placement> Place(const PlacementInput& input);

}  // namespace penstock
