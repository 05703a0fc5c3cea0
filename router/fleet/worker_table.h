#pragma once

#include <functional>
#include <map>
#include <memory>
#include <optional>
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
#include "router/placement/transfer_book.h"

namespace penstock {

// Called, on any thread, when a worker goes silent while its calls still hang.
using LossListener = std::function<void(const absl::Status& status)>;

// Role ("prefill", "decode") and state: a phase, or "silent" when it cannot be heard.
using WorkerKind = std::pair<std::string, std::string>;

// The namespace of the blocks that ready workers cache.
struct BlockSpace {
  uint64_t model_fingerprint = 0;
  std::string kv_format;
  uint32_t block_tokens = 0;  // 0: no pair is ready
  bool operator==(const BlockSpace&) const = default;
};

// Whether prefill workers read from other workers' stores.
struct PeerReadPolicy {
  bool on = true;
  double patience_least_ms = 0;  // that a prompt waits for it, whatever computing takes; for tests
};

struct PlacementRequest {
  PlacementNeed need;
  std::vector<BlockId> ids;  // the prompt's full blocks in block_space(); empty: nothing is known
  // As decode workers name them, where KV goes over lossily; nothing: the same.
  std::optional<std::vector<BlockId>> decode_ids = {};
  uint32_t explain = 0;  // how many candidates to explain
  WorkerFailures failures;
  LossListener on_prefill_lost;
  LossListener on_decode_lost;
  std::function<void()> on_decode_leaving = {};  // once, on any thread: it drains
  uint64_t random = 0;
  std::string tenant = {};  // whose; empty: nobody in particular
};

// What requests should have, for advice on roles.
struct RoleTargets {
  double ttft_ms = 2000;
  double tpot_ms = 100;
};

// One worker as it is seen from here, to be shown.
struct WorkerPicture {
  std::string endpoint;
  v1::WorkerState state;          // the last one; no role: it was never heard
  std::string doing;              // a phase, or "silent"
  uint32_t booked = 0;            // requests of this router
  std::optional<uint32_t> index;  // its number in prefixes()
};

// What the router knows of every worker: its last state and what this router has booked on it.
// Shared by the fleet and by bookings, which may outlive it. Any thread.
class WorkerTable : public std::enable_shared_from_this<WorkerTable> {
 public:
  // A state older than `stale_after` counts for nothing. `metrics` outlives the table; null: none.
  WorkerTable(const Clock& clock, Duration stale_after, PlacementMetrics* metrics = nullptr,
              PeerReadPolicy peer_reads = {});

  // `channel` and `sessions`, which is over it, are handed out with placements; null in tests.
  void Add(const std::string& endpoint, std::shared_ptr<grpc::Channel> channel,
           std::shared_ptr<DecodeLink> sessions = nullptr);
  void Remove(const std::string& endpoint);
  void OnWatchStarted(const std::string& endpoint);
  void OnState(const std::string& endpoint, const v1::WorkerState& state);
  void OnWatchEnded(const std::string& endpoint, const std::string& reason);

  // Tells the listeners of workers whose watch is open and has been silent too long. Returns their
  // endpoints: their watches want to be opened anew.
  std::vector<std::string> Sweep();

  // Chooses and books. Errors of penstock::Place.
  absl::StatusOr<PlacedPair> Place(const PlacementRequest& request);
  // As Place, of a decode worker alone; the pair's `prefill` is empty. Errors of
  // penstock::PlaceTarget.
  absl::StatusOr<PlacedPair> PlaceTarget(const PlacementRequest& request);

  // What came of a placement, for the predictors: the prefill worker's first tokens, and the
  // handoff's figures.
  void OnFirstTokens(const PlacementForecast& forecast, const v1::FirstTokens& first);
  void OnHandoff(const PlacementForecast& forecast, const v1::HandoffDone& handoff);

  // The worker's number in prefixes(); nullopt when it is unknown or there are too many.
  std::optional<uint32_t> IndexOf(const std::string& endpoint) const;
  PrefixView& prefixes() { return prefixes_; }
  const HotPrefixes& hot_prefixes() const { return hot_prefixes_; }
  TransferBook& transfers() { return transfers_; }
  BlockSpace block_space() const;

  // Whether some pair could take a request now.
  bool ready() const;
  // Of the ready pairs, the longest context; 0 when none is ready.
  uint32_t max_model_len() const;
  uint32_t block_tokens() const;  // of the ready workers; 0 when none is ready
  // Lossy codecs that both workers of some ready pair take; nothing when no pair is ready.
  std::optional<std::vector<std::string>> lossy_codecs() const;
  // Changes with every event above.
  uint64_t version() const;
  // How many are listed of each kind. Those never heard of have no role and are not counted.
  std::map<WorkerKind, int> Counts() const;
  // To the worker of that id or endpoint. NOT_FOUND names those that are listed,
  // FAILED_PRECONDITION two of one id.
  absl::StatusOr<std::shared_ptr<grpc::Channel>> ChannelTo(const std::string& worker) const;
  // Whether the worker can become one of `role` and leave another ready one of its present role.
  // FAILED_PRECONDITION: it is the last; NOT_FOUND and others as ChannelTo.
  absl::Status CheckOthers(const std::string& worker, v1::WorkerState::Role role) const;
  // How the workers of each role are doing.
  RoleSituation Roles(const RoleTargets& targets) const;
  // The first `most` of those that are listed, by endpoint.
  std::vector<WorkerPicture> Pictures(size_t max) const;

 private:
  struct Reservation {
    uint64_t tokens = 0;
    uint64_t blocks = 0;
    double predicted_ms = 0;
    LossListener on_lost;
    std::function<void()> on_leaving = {};
  };
  struct Booked {
    uint64_t tokens = 0;
    uint64_t blocks = 0;
    uint32_t requests = 0;
  };
  struct Worker {
    std::shared_ptr<grpc::Channel> channel;
    std::shared_ptr<DecodeLink> sessions;
    v1::WorkerState state;
    bool watched = false;  // a watch is open
    bool fresh = false;    // `state` came on that watch
    TimePoint last_seen;
    Booked booked;
    Booked booked_at_state;  // `booked` when `state` came: the state counts that already
    std::map<uint64_t, Reservation> reservations;
    std::string logged;  // last state as it was logged
    std::optional<uint32_t> index;
    PrefillQueue queue;           // of our bookings
    TimePoint no_source_until{};  // reading from its store has failed
  };
  // What is learned of the workers of one format.
  struct Pool {
    PrefillPredictor prefill;
    StepPredictor step;
    MovePredictor handoff;
    MovePredictor fetch{{.latency_ms = 2, .ms_per_token = 1e-2}};
  };

  // What Place decides on, and whose candidates they are.
  struct Gathered {
    PlacementInput input;
    std::vector<std::string> prefill;  // endpoints
    std::vector<std::string> decode;
    std::vector<std::string> sources;
  };

  static KvFormat FormatOf(const v1::WorkerState& state);
  bool Eligible(const Worker& worker) const REQUIRES(mutex_);
  std::string_view WhatDoes(const Worker& worker) const REQUIRES(mutex_);
  struct Matches {  // of the prompt's blocks as either role names them
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
  // Of its reservations; each is told once.
  static void TakeListeners(Worker& worker, std::vector<LossListener>& listeners);
  static std::vector<std::function<void()>> TakeLeavers(Worker& worker);
  void AddPrefill(const Worker& worker, const PlacementRequest& request,
                  const PrefixMatches& matches, Candidate& candidate) const REQUIRES(mutex_);
  void AddDecode(const Worker& worker, const PlacementRequest& request,
                 const PrefixMatches& matches, Candidate& candidate) const REQUIRES(mutex_);
  double QueueMs(const Worker& worker, const PrefillModel& prefill) const REQUIRES(mutex_);
  void LearnSteps(const Worker& worker, const v1::WorkerState& next) REQUIRES(mutex_);
  const Pool& PoolOf(const KvFormat& format) const REQUIRES(mutex_);
  const Worker* FirstDecodeOfPair() const REQUIRES(mutex_);
  PlacedWorker Book(const std::string& endpoint, Reservation reservation) REQUIRES(mutex_);
  void Release(const std::string& endpoint, uint64_t incarnation, uint64_t id) EXCLUDES(mutex_);
  void LogOnce(const std::string& endpoint, Worker& worker, const std::string& what)
      REQUIRES(mutex_);
  absl::StatusOr<const Worker*> FindNamed(const std::string& name) const REQUIRES(mutex_);
  std::vector<const Worker*> EligibleOf(v1::WorkerState::Role role) const REQUIRES(mutex_);

  const Clock& clock_;
  const Duration stale_after_;
  PlacementMetrics* const metrics_;
  const PeerReadPolicy peer_reads_;
  PrefixView prefixes_;
  HotPrefixes hot_prefixes_;
  TransferBook transfers_;
  mutable Mutex mutex_;
  std::map<std::string, Worker> workers_ GUARDED_BY(mutex_);  // by endpoint
  uint64_t next_reservation_ GUARDED_BY(mutex_) = 0;
  uint64_t version_ GUARDED_BY(mutex_) = 0;
  double usual_prefill_ms_ GUARDED_BY(mutex_) = 0;  // of what was placed lately, as predicted
  std::map<std::pair<uint64_t, uint64_t>, Pool> pools_ GUARDED_BY(mutex_);  // by fingerprints
};

}  // namespace penstock
