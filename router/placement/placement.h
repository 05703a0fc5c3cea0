#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <vector>

#include "base/status.h"
#include "kvstore/names/block_hash.h"
#include "router/placement/cost_models.h"

// Room router/placement: pure decisions about which pair of workers serves a prompt, with the cost
// models, the view of the workers' caches and the statistics that they need. It knows snapshots of
// workers (Candidate) and block ids; it may not know connections, sessions or clients, and does no
// I/O.
namespace penstock {

// The KV format of a worker. Workers of one format can hand KV to each other and generate the same
// tokens.
struct KvFormat {
  uint64_t model_fingerprint = 0;
  uint64_t layout_fingerprint = 0;
  uint32_t block_tokens = 0;
  uint32_t window = 0;  // tokens whose KV a sequence holds at most; 0: of all
  bool operator==(const KvFormat&) const = default;
};

// The prefix of the prompt that a worker has cached, and the part of it in slower tiers.
struct CachedPrefix {
  uint32_t tokens = 0;           // leading tokens of the prompt
  uint32_t dram_tokens = 0;      // of `tokens`, those in host memory
  uint32_t nvme_tokens = 0;      // of `tokens`, those on NVMe
  uint32_t expected_tokens = 0;  // of `tokens`, those that no event has confirmed yet
  double hit_probability = 1;    // that all of it is still cached, 0..1
};

// A ready worker as placement sees it: its last reported state, and this router's reservations on
// it since then. All times are predictions in milliseconds.
struct Candidate {
  KvFormat format;
  uint32_t max_model_len = 0;    // tokens; 0: unknown
  double queue_ms = 0;           // prefill: until a prompt that arrives now is started
  double recent_work_ms = 0;     // prefill: work sent to it, decayed over a minute
  double long_term_work_ms = 0;  // prefill: the same, decayed over ten minutes
  CachedPrefix cached;
  PrefillModel prefill;
  MoveModel dram;                 // restore from host memory to device pages
  MoveModel nvme;                 // restore from NVMe to device pages
  MoveModel link;                 // the part of a handoff that compute does not hide
  std::optional<MoveModel> pull;  // read from another worker's store; nullopt: not possible
  uint64_t blocks_total = 0;      // 0: unknown
  uint64_t blocks_taken = 0;      // blocks that are used or reserved
  uint32_t requests = 0;          // requests that wait, run or have a reservation
  uint32_t waiting = 0;           // requests in the worker's queue
  uint32_t waiting_max = 0;       // the most that its queue takes; 0: unknown
  double context_tokens = 0;      // decode: tokens of all running sequences
  StepModel step;                 // decode
  // Decode: a prompt with at most this many uncached tokens may be computed here; 0: none.
  uint32_t local_prefill_max_tokens = 0;
  uint32_t prefill_chunk = 0;  // decode: prompt tokens computed in one step
  bool serves_alone = false;   // decode: computes whole prompts while no prefill worker is ready
  int failures = 0;            // failures of this session on this worker, weighted
};

// A worker whose store other workers can read, even when it takes no prompts itself.
struct PrefixSource {
  KvFormat format;
  CachedPrefix cached;
  MoveModel dram;  // restore from host memory to its device pages
  MoveModel nvme;
};

// The requirements of one placement.
struct PlacementNeed {
  uint32_t prompt_tokens = 0;   // tokens to prefill; after a failure with the answer so far
  uint32_t evicted_tokens = 0;  // of prompt_tokens, those whose KV is dropped behind prefill
  uint32_t held_max = 0;        // tokens whose KV a choice holds at most; 0: all
  uint32_t answer_tokens = 0;   // upper bound for each choice
  uint32_t choices = 1;
  std::optional<KvFormat> format;    // set once tokens were sent: other formats would differ
  double ttft_limit_ms = 0;          // from now; 0: no limit
  bool may_prefill_locally = false;  // a decode worker may compute the uncached end of the prompt
  bool may_skip_prefill =
      false;  // a decode worker may serve alone while no prefill worker is ready
  uint64_t grammar_fingerprint = 0;  // of the workers that can enforce its grammar; 0: it has none
  // The method of eviction or selection that both workers must have; empty: any will do.
  std::string kv_method = {};

  uint32_t kv_tokens() const { return prompt_tokens - evicted_tokens; }  // that are handed over
};

// Weights of the cost function. A weight of 1 counts another request's millisecond like one of
// this request.
struct PlacementPolicy {
  // The cost of queueing: each ms of work on a prefill worker delays all requests that come after
  // it, and computing a prefix twice does so for no gain. A ms of work costs this many ms more;
  // less the more workers have the prefix already (Spread in placement_score.cc).
  double queueing_cost_weight = 5;
  // Balances prefill workers over a minute, so that a hot prefix is replicated: the weight of the
  // difference between a worker's recent_work_ms and the mean.
  double balance_weight = 0.2;
  // Balances over ten minutes: the weight of long_term_work_ms above (1 + long_term_slack) times
  // the mean. It is what replicates a prefix that all prompts share when no request queues.
  double long_term_slack = 0.08;
  double long_term_weight = 1;
  // The weight of a ms by which this request slows down all running sequences of a decode worker,
  // summed over its answer.
  double decode_interference_weight = 0.1;
  // A prefill worker is a hot spot when its queue is longer than hot_spot_factor times the mean
  // plus hot_spot_ms. It is chosen only when there is no other.
  double hot_spot_factor = 4;
  double hot_spot_ms = 500;
  // The extra cost of a decode worker without free blocks, in ms; proportional below that. It
  // decides between decode workers of equal speed.
  double fullness_ms = 2;
  // Workers within this fraction of the best cost of their side are tied: one is picked at random.
  double tie_fraction = 0.005;
};

struct PlacementInput {
  std::vector<Candidate> prefill;
  std::vector<Candidate> decode;
  std::vector<PrefixSource> sources;
  size_t prefill_known = 0;  // prefill workers, ready or not
  size_t decode_known = 0;   // decode workers, ready or not
  PlacementNeed need;
  PlacementPolicy policy;
  uint64_t random = 0;  // breaks ties
  size_t explain = 0;   // number of scored pairs to return
};

struct WorkerPair {
  static constexpr size_t kNone = SIZE_MAX;
  size_t prefill = 0;  // index into PlacementInput::prefill; kNone: the decode worker computes it
  size_t decode = 0;   // index into PlacementInput::decode
};

// The cost of one pair, in ms, by term.
struct PlacementTerms {
  // Time to this request's first token:
  double queue_ms = 0;
  double prefill_ms = 0;  // compute of the tokens that are not cached
  double restore_ms = 0;  // restore of cached tokens from slower tiers
  double fetch_ms = 0;    // read of a prefix from another worker's store
  // Time from the first to the second token:
  double transfer_ms = 0;
  double decode_ms = 0;             // the first decode step
  double transfer_discount_ms = 0;  // <= 0: transfer that the decode worker's cache saves
  // Weighted costs for other requests:
  double queueing_cost_ms = 0;
  double balance_ms = 0;  // negative on a worker with less work than the mean
  double decode_interference_ms = 0;

  double ttft_ms() const { return queue_ms + prefill_ms + restore_ms + fetch_ms; }
  // The terms that depend on the prefill worker, and those that depend on the decode worker.
  double prefill_cost_ms() const { return ttft_ms() + transfer_ms + queueing_cost_ms + balance_ms; }
  double decode_cost_ms() const {
    return decode_ms + transfer_discount_ms + decode_interference_ms;
  }
  double cost_ms() const { return prefill_cost_ms() + decode_cost_ms(); }
};

// A prefix that the prefill worker reads from another worker's store before it computes the rest.
struct PrefixFetch {
  size_t source = 0;       // index into PlacementInput::sources
  uint32_t tokens = 0;     // tokens beyond those that the prefill worker has itself
  double computed_ms = 0;  // predicted time to compute them instead
};

struct ScoredPair {
  // Why a pair was chosen or not (NameOf in explain.h).
  enum class Verdict { kChosen, kTied, kHigherCost, kHotSpot, kOverLimit, kFailedBefore, kNoRoom };
  WorkerPair workers;
  PlacementTerms terms;
  std::optional<PrefixFetch> fetch;
  Verdict verdict = Verdict::kHigherCost;
};

struct Placement {
  WorkerPair workers;
  PlacementTerms terms;
  uint32_t cached_tokens = 0;  // prompt tokens that will not be computed
  uint32_t held_tokens = 0;    // prompt tokens that the decode worker has and need not be sent
  std::optional<PrefixFetch> fetch;
  bool alone = false;              // a decode worker serves alone: no prefill worker is ready
  std::vector<ScoredPair> scored;  // the chosen pair, then the others by cost
};

// A worker whose queue is full is not chosen. This is the limit of workers that do not report
// theirs.
inline constexpr uint32_t kMaxWaitingPerWorker = 256;

// Upper bound of the blocks that the prompt and the whole answer take at once.
uint64_t BlocksNeeded(const PlacementNeed& need, const KvFormat& format);

// Chooses the decode worker of need.format with the lowest cost for a running sequence that moves
// there: an index into PlacementInput::decode. UNAVAILABLE when there is none. Pure.
absl::StatusOr<size_t> PlaceTarget(const PlacementInput& input);

// Chooses the pair of equal KV format with the lowest cost, or a decode worker alone when it has so
// much of the prompt cached that computing the rest there costs less. These come before cost, in
// this order: fewer failures of this session, a decode worker with free blocks, the TTFT limit, no
// hot spot. With more than 16 workers a side, only the best 16 of each side are paired. While no
// prefill worker is ready, a decode worker computes the whole prompt, if it may.
// UNAVAILABLE when no pair is ready; RESOURCE_EXHAUSTED with an ErrorDetail when all workers are
// full or none can meet the TTFT limit. Pure.
absl::StatusOr<Placement> Place(const PlacementInput& input);

// The decision about the workers of a request whose prompt has these full blocks. It is Place,
// except where a simulation compares Place with the rules of other routers. Called with the worker
// table's lock held.
using PlacementRule = std::function<absl::StatusOr<Placement>(const PlacementInput& input,
                                                              std::span<const BlockId> prompt)>;

}  // namespace penstock
