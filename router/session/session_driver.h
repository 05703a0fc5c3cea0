#pragma once

#include <chrono>
#include <map>
#include <memory>

#include "base/mutex.h"
#include "base/rpc/timer.h"
#include "router/admission/entry_ticket.h"
#include "router/fleet/fleet.h"
#include "router/fleet/worker_calls.h"
#include "router/metrics/request_metrics.h"
#include "router/session/session.h"
#include "router/session/session_request.h"
#include "router/trace/span_exporter.h"

namespace penstock {

// The receiver of a session's answer. Called with the session's lock held; must not block.
class ClientSink {
 public:
  virtual ~ClientSink() = default;
  virtual void Send(v1::GenerateResponse response) = 0;
  // Ends the answer. Called once, after all Sends.
  virtual void Finish(const absl::Status& status) = 0;
};

struct SessionDriverArgs {
  SessionRequest request;
  StopMatcher stops;
  const Tokenizer& tokenizer;  // all references here outlive the client's call
  SessionLimits limits;
  Fleet& fleet;
  const Clock& clock;
  TimePoint deadline;  // the client's, also of the calls to workers; max(): none
  ClientSink& client;
  EntryTicket entry;  // kept until the last call to a worker has ended
  RequestMetrics& metrics;
  SpanExporter* spans = nullptr;  // nullptr: none are exported
};

// Runs one Session against real workers: turns calls and timers into the session's inputs, and its
// effects into calls. One lock guards the session. Shared by the client's call, the calls to
// workers and pending callbacks. Any thread.
class SessionDriver final : public WorkerCallListener,
                            private SessionEffects,
                            public std::enable_shared_from_this<SessionDriver> {
 public:
  explicit SessionDriver(SessionDriverArgs args);

  void Start() EXCLUDES(mutex_);
  void OnClientGone(const absl::Status& status) EXCLUDES(mutex_);

  void OnPrefillEvent(int attempt, const v1::PrefillEvent& event) override EXCLUDES(mutex_);
  void OnDecodeEvent(int attempt, const v1::DecodeEvent& event) override EXCLUDES(mutex_);
  void OnDecodeToken(int attempt, const v1::TokenOut& token) override EXCLUDES(mutex_);
  void OnCallEnded(int attempt, Side side, const absl::Status& status) override EXCLUDES(mutex_);

 private:
  struct Calls {
    std::shared_ptr<WorkerCall> prefill;  // nullptr once ended
    std::shared_ptr<WorkerCall> decode;
    std::shared_ptr<const PlacementForecast> forecast;  // shared with the attempt; nullptr: none
    std::unique_ptr<TransferStats::Transfer> transfer;  // while `prefill` is open
  };

  absl::StatusOr<PlacedPair> Place(int attempt, bool is_new, const PlacementNeed& need,
                                   const WorkerFailures& failures) override REQUIRES(mutex_);
  absl::StatusOr<PlacedPair> PlaceTarget(int attempt, const PlacementNeed& need,
                                         const WorkerFailures& failures) override REQUIRES(mutex_);
  void Open(int attempt, const PlacedPair& workers, const v1::PrefillRequest& prefill,
            const v1::DecodeRequest& decode) override REQUIRES(mutex_);
  void OpenTarget(int attempt, const PlacedPair& workers, const v1::DecodeRequest& decode) override
      REQUIRES(mutex_);
  void Move(int attempt, const PlacedPair& workers, const v1::MoveRequest& move) override
      REQUIRES(mutex_);
  void Cancel(int attempt, Side side) override REQUIRES(mutex_);
  void Send(v1::GenerateResponse response) override REQUIRES(mutex_);
  void Finish(const absl::Status& status) override REQUIRES(mutex_);
  void WakeAt(TimePoint when) override REQUIRES(mutex_);
  uint64_t Random() override;
  void OnShown(uint32_t choice, int tokens, TimePoint now) override REQUIRES(mutex_);

  void Wake() EXCLUDES(mutex_);
  void ListenForChanges() REQUIRES(mutex_);
  void LogEnd(const absl::Status& status) const REQUIRES(mutex_);
  void ExportSpans(const absl::Status& status) const REQUIRES(mutex_);
  LossListener LostListener(int attempt, Side side);
  std::function<void()> DrainListener(int attempt);
  PlacementRequest RequestOf(int attempt, const PlacementNeed& need, const WorkerFailures& failures)
      REQUIRES(mutex_);
  WorkerCallArgs ArgsOf(int attempt, const PlacedWorker& worker) REQUIRES(mutex_);
  void NameBlocks() REQUIRES(mutex_);
  double LimitMs(const PlacementNeed& need) const;
  absl::StatusOr<PlacedPair> PlaceInOrder(const PlacementRequest& request);

  const EntryTicket entry_;  // the first member, so that it is destroyed last
  Fleet& fleet_;
  const Clock& clock_;
  const TimePoint deadline_;
  ClientSink& client_;  // valid until Finish
  SpanExporter* const spans_;

  const AdmissionTicket ticket_;

  Mutex mutex_;
  RequestMeter meter_ GUARDED_BY(mutex_);
  Session session_ GUARDED_BY(mutex_);
  std::map<int, Calls> calls_ GUARDED_BY(mutex_);  // by attempt
  Timer timer_ GUARDED_BY(mutex_);
  bool listens_ GUARDED_BY(mutex_) = false;
  // Ids of the prompt's full blocks in the namespace `ids_space_`.
  BlockSpace ids_space_ GUARDED_BY(mutex_);
  PromptIds ids_ GUARDED_BY(mutex_);
};

}  // namespace penstock
