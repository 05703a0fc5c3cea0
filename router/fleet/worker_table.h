#pragma once

#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "base/clock.h"
#include "base/mutex.h"
#include "proto/worker.pb.h"
#include "router/fleet/role_advice.h"
#include "router/placement/hot_prefixes.h"
#include "router/placement/placed_pair.h"
#include "router/placement/placement_metrics.h"
#include "router/placement/predictors.h"
#include "router/placement/prefill_queue.h"
#include "router/placement/prefix_view.h"
#include "router/placement/transfer_stats.h"

namespace penstock {

// Called, on any thread, when a worker is silent or unhealthy while its calls still hang.
using LossListener = std::function<void(const absl::Status& status)>;

// Role ("prefill", "decode") and state: a phase, "silent" without a recent state, or "refused": a
// ready worker of another checkpoint than the one that is served.
using WorkerKind = std::pair<std::string, std::string>;

// The namespace of the block ids of the ready workers.
struct BlockSpace {
  uint64_t model_fingerprint = 0;
  std::string kv_format;
  uint32_t block_tokens = 0;  // 0: no pair is ready
  bool operator==(const BlockSpace&) const = default;
};

// The rules for reading prefixes from other workers' stores (--peer_reads).
struct PeerReadPolicy {
  bool on = true;
  double patience_least_ms = 0;  // minimum of PeerPrefix.patience_ms; for tests
};

struct PlacementRequest {
  PlacementNeed need;
  std::vector<BlockId> ids;  // the prompt's full blocks in block_space(); empty: unknown
  // The same blocks in the namespace of lossy KV, for decode workers; nullopt: `ids`.
  std::optional<std::vector<BlockId>> decode_ids = {};
  uint32_t explain = 0;  // number of candidates to explain
  WorkerFailures failures;
  LossListener on_prefill_lost;
  LossListener on_decode_lost;
  std::function<void()> on_decode_draining =
      {};  // called once, on any thread, when the worker drains
  uint64_t random = 0;
  std::string tenant = {};  // empty: no tenants are configured
};

// The placement that a request would get now.
struct PlacementOutlook {
  std::string prefill_worker;  // empty: the decode worker computes the prompt
  std::string decode_worker;   // its id, as the other's
  uint32_t cached_tokens = 0;  // prompt tokens that would not be computed
  double first_token_ms = 0;   // predicted
};

// The latency targets for the advice on roles.
struct RoleTargets {
  double ttft_ms = 2000;
  double tpot_ms = 100;
};

// True when the worker has changed its role an odd number of times: it starts under role epoch 1,
// and every change adds one.
bool StartedInOtherRole(const v1::WorkerState& state);

// The times that this router has learned of the workers that serve now.
struct ServiceTimes {
  bool prefill_known = false;  // enough prompts were observed
  double prefill_ms = 0;       // mean of the latest prompts, on a worker without a queue
  double ms_per_prompt_token = 0;
  bool step_known = false;  // enough decode steps were observed
  StepModel step;
};

// One worker as this router sees it, for the page and operators.
struct WorkerPicture {
  std::string endpoint;
  v1::WorkerState state;          // the last one; no role: it was never heard
  std::string status;             // a phase, "silent" or "refused"
  uint32_t requests = 0;          // requests of this router
  std::optional<uint32_t> index;  // its number in prefixes()
};

// All known workers: their last state, this router's reservations on them, and the cost models
// learned from them. Shared by the fleet and by reservations, which may outlive the fleet. Any
// thread. Listeners are called without a lock held.
class WorkerTable : public std::enable_shared_from_this<WorkerTable> {
 public:
  // A state older than `stale_after` is ignored. `metrics` outlives the table; nullptr: none.
  // `rule`: nullptr: penstock::Place.
  WorkerTable(const Clock& clock, Duration stale_after, PlacementMetrics* metrics = nullptr,
              PeerReadPolicy peer_reads = {}, PlacementRule rule = nullptr);

  // Placements return `channel` and `sessions`, which uses the channel; nullptr in tests.
  void Add(const std::string& endpoint, std::shared_ptr<grpc::Channel> channel,
           std::shared_ptr<DecodeLink> sessions = nullptr);
  void Remove(const std::string& endpoint);
  void OnWatchStarted(const std::string& endpoint);
  void OnState(const std::string& endpoint, const v1::WorkerState& state);
  void OnWatchEnded(const std::string& endpoint, const std::string& reason);

  // Calls the loss listeners of workers whose watch is open and silent for longer than stale_after.
  // Returns their endpoints: the caller should reopen their watches.
  std::vector<std::string> Sweep();

  // Chooses a pair of workers and reserves their load. Errors of penstock::Place.
  absl::StatusOr<PlacedPair> Place(const PlacementRequest& request);
  // Chooses and reserves a decode worker alone; the pair's `prefill` is empty. Errors of
  // penstock::PlaceTarget.
  absl::StatusOr<PlacedPair> PlaceTarget(const PlacementRequest& request);

  // Returns what Place would choose now, and reserves nothing. Errors of penstock::Place.
  absl::StatusOr<PlacementOutlook> Foresee(const PlacementRequest& request) const EXCLUDES(mutex_);

  // The outcome of a placement, for the predictors: the prefill worker's first tokens, and the
  // handoff's figures.
  void OnFirstTokens(const PlacementForecast& forecast, const v1::FirstTokens& first);
  void OnHandoff(const PlacementForecast& forecast, const v1::HandoffDone& handoff);

  // The worker's number in prefixes(); nullopt when the worker is unknown or the index is full.
  std::optional<uint32_t> IndexOf(const std::string& endpoint) const;
  PrefixView& prefixes() { return prefixes_; }
  const HotPrefixes& hot_prefixes() const { return hot_prefixes_; }
  TransferStats& transfers() { return transfers_; }
  BlockSpace block_space() const;

  // True when a pair of equal KV format is ready for requests, or a decode worker that serves alone
  // because all prefill workers are gone.
  bool ready() const;
  // The longest context of those, in tokens; 0 when none is ready.
  uint32_t max_model_len() const;
  // The numerics of ready decode workers (WorkerState.numerics), each once, in order of names.
  std::set<std::string> numerics() const;
  uint32_t block_tokens() const;  // tokens of a block of those; 0 when none is ready
  // Lossy codecs and methods of eviction and selection that both workers of some ready pair
  // support; nullopt when no pair is ready.
  std::optional<std::vector<std::string>> kv_methods() const;
  // A counter that every event above increases.
  uint64_t version() const;
  // The number of workers of each kind. A worker without a state yet has no role and is not
  // counted.
  std::map<WorkerKind, int> Counts() const;
  // The channel to the worker with this id or endpoint. NOT_FOUND names the known workers;
  // FAILED_PRECONDITION when several workers have this id.
  absl::StatusOr<std::shared_ptr<grpc::Channel>> ChannelTo(const std::string& worker) const;
  // OK when another worker of the worker's present role is ready, so that it may change to `role`.
  // FAILED_PRECONDITION: it is the last ready one. Errors of ChannelTo.
  absl::Status CheckOthers(const std::string& worker, v1::WorkerState::Role role) const;
  // The load of each role, for the advice on roles.
  RoleSituation Roles(const RoleTargets& targets) const;
  ServiceTimes Times() const;
  // The first `max` workers, by endpoint.
  std::vector<WorkerPicture> Pictures(size_t max) const;

 private:
  struct ReservationRecord {
    uint64_t tokens = 0;
    uint64_t blocks = 0;
    double predicted_ms = 0;
    LossListener on_lost;
    std::function<void()> on_draining = {};
  };
  struct ReservedTotals {
    uint64_t tokens = 0;
    uint64_t blocks = 0;
    uint32_t requests = 0;
  };
  struct Worker {
    std::shared_ptr<grpc::Channel> channel;
    std::shared_ptr<DecodeLink> sessions;
    v1::WorkerState state;
    bool watched = false;  // the Watch stream is open
    bool fresh = false;    // `state` arrived on the open Watch stream
    TimePoint last_seen;
    ReservedTotals reserved;
    ReservedTotals reserved_at_state;  // `reserved` when `state` arrived: the state includes it
    std::map<uint64_t, ReservationRecord> reservations;
    std::string logged;    // the state that was logged last
    bool refused = false;  // worker_model_refused was logged
    std::optional<uint32_t> index;
    PrefillQueue queue;           // predicted work of this router's reservations
    TimePoint no_source_until{};  // its store is not read before this: a read has failed
  };
  // The cost models of the workers of one KV format.
  struct Pool {
    PrefillPredictor prefill;
    StepPredictor step;
    MovePredictor handoff;
    MovePredictor fetch{{.latency_ms = 2, .ms_per_token = 1e-2}};
  };

  // The input of a placement, and the endpoints of its candidates, by index.
  struct Gathered {
    PlacementInput input;
    std::vector<std::string> prefill;  // endpoints
    std::vector<std::string> decode;
    std::vector<std::string> sources;
  };

  static KvFormat FormatOf(const v1::WorkerState& state);
  bool IsReady(const Worker& worker) const REQUIRES(mutex_);
  bool IsServed(uint64_t checkpoint) const REQUIRES(mutex_);
  bool HasOtherModel(const Worker& worker) const REQUIRES(mutex_);
  bool Eligible(const Worker& worker) const REQUIRES(mutex_);
  void BindModel(const std::string& endpoint, Worker& worker) REQUIRES(mutex_);
  std::string_view StatusOf(const Worker& worker) const REQUIRES(mutex_);
  struct Matches {  // of PlacementRequest::ids, and of decode_ids
    const PrefixMatches& prefill;
    const PrefixMatches& decode;
  };
  absl::StatusOr<PlacedPair> PlaceFound(const PlacementRequest& request, const Matches& matches)
      EXCLUDES(mutex_);
  Gathered Gather(const PlacementRequest& request, const Matches& matches) const REQUIRES(mutex_);
  void AddSource(const std::string& endpoint, const Worker& worker, const PlacementRequest& request,
                 const PrefixMatches& matches, Gathered& gathered) const REQUIRES(mutex_);
  void PlanFetch(const Gathered& gathered, const Placement& placement, PlacedPair& placed,
                 PlacementForecast& forecast) const REQUIRES(mutex_);
  void LearnFetch(const PlacementForecast& forecast, const v1::PeerRead& read) EXCLUDES(mutex_);
  v1::Explanation ExplanationOf(const Gathered& gathered, const Placement& placement) const
      REQUIRES(mutex_);
  Candidate CandidateOf(const std::string& endpoint, const Worker& worker,
                        const PlacementRequest& request) const REQUIRES(mutex_);
  void TakeState(const std::string& endpoint, Worker& worker, const v1::WorkerState& state)
      REQUIRES(mutex_);
  // Moves the listeners out of the worker's reservations, so that each is called once.
  static void TakeLossListeners(Worker& worker, std::vector<LossListener>& listeners);
  static std::vector<std::function<void()>> TakeDrainListeners(Worker& worker);
  void AddPrefill(const Worker& worker, const PlacementRequest& request,
                  const PrefixMatches& matches, Candidate& candidate) const REQUIRES(mutex_);
  void AddDecode(const Worker& worker, const PlacementRequest& request,
                 const PrefixMatches& matches, Candidate& candidate) const REQUIRES(mutex_);
  double QueueMs(const Worker& worker, const PrefillModel& prefill) const REQUIRES(mutex_);
  void LearnSteps(const Worker& worker, const v1::WorkerState& next) REQUIRES(mutex_);
  const Pool& PoolOf(const KvFormat& format) const REQUIRES(mutex_);
  const Worker* FirstServingDecode() const REQUIRES(mutex_);
  bool ServesAlone(const Worker& decode) const REQUIRES(mutex_);
  PlacedWorker Reserve(const std::string& endpoint, ReservationRecord reservation) REQUIRES(mutex_);
  void Release(const std::string& endpoint, uint64_t incarnation, uint64_t id) EXCLUDES(mutex_);
  void LogOnce(const std::string& endpoint, Worker& worker, const std::string& what)
      REQUIRES(mutex_);
  absl::StatusOr<const Worker*> FindNamed(const std::string& name) const REQUIRES(mutex_);
  std::vector<const Worker*> EligibleOf(v1::WorkerState::Role role) const REQUIRES(mutex_);
  // The methods of eviction and of selection that the worker does.
  static std::set<std::string> MethodsOf(const v1::WorkerState& state);

  const Clock& clock_;
  const TimePoint started_;
  const Duration stale_after_;
  PlacementMetrics* const metrics_;
  const PeerReadPolicy peer_reads_;
  const PlacementRule rule_;
  PrefixView prefixes_;
  HotPrefixes hot_prefixes_;
  TransferStats transfers_;
  mutable Mutex mutex_;
  std::map<std::string, Worker> workers_ GUARDED_BY(mutex_);  // by endpoint
  uint64_t next_reservation_ GUARDED_BY(mutex_) = 0;
  uint64_t version_ GUARDED_BY(mutex_) = 0;
  // The checkpoint that is served: that of the first ready worker, as long as any worker of it is
  // ready. Workers of another one get no requests, because two models must not answer under one
  // name. 0: none is known.
  uint64_t checkpoint_ GUARDED_BY(mutex_) = 0;
  bool prefill_was_ready_ GUARDED_BY(mutex_) = false;  // any prefill worker, at any time
  double mean_prefill_ms_ GUARDED_BY(mutex_) = 0;      // moving average of predicted prefill times
  std::map<std::pair<uint64_t, uint64_t>, Pool> pools_
      GUARDED_BY(mutex_);  // by model and layout fingerprint
};

}  // namespace penstock
