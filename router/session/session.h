#pragma once

#include <memory>
#include <string>
#include <vector>

#include "base/clock.h"
#include "base/log/log.h"
#include "base/status.h"
#include "base/trace_context.h"
#include "proto/inference.pb.h"
#include "proto/worker.pb.h"
#include "router/metrics/session_timing.h"
#include "router/placement/placed_pair.h"
#include "router/request/answer_spec.h"
#include "router/request/cache_breakpoints.h"
#include "router/session/choice_writer.h"
#include "router/session/journal.h"

namespace penstock {

// What a session does to the world. Called from inside the session's own methods.
class SessionEffects {
 public:
  virtual ~SessionEffects() = default;
  // Errors of Place().
  virtual absl::StatusOr<PlacedPair> Place(int attempt, const PlacementNeed& need,
                                           const WorkerFailures& failures) = 0;
  // A decode worker to take over what runs on one that leaves; only `decode` of the pair is given.
  // Errors of PlaceTarget().
  virtual absl::StatusOr<PlacedPair> PlaceTarget(int attempt, const PlacementNeed& need,
                                                 const WorkerFailures& failures) = 0;
  // Starts both calls of attempt `attempt`; what they say comes back as On...(attempt, ...).
  virtual void Open(int attempt, const PlacedPair& workers, const v1::PrefillRequest& prefill,
                    const v1::DecodeRequest& decode) = 0;
  // Starts the decode call alone: of a move, or where the decode worker computes the prompt's end.
  virtual void OpenTarget(int attempt, const PlacedPair& workers,
                          const v1::DecodeRequest& decode) = 0;
  // Starts the Move call on workers.prefill, which is the worker that leaves. It counts as the
  // attempt's prefill side.
  virtual void Move(int attempt, const PlacedPair& workers, const v1::MoveRequest& move) = 0;
  virtual void Cancel(int attempt, Side side) = 0;
  virtual void Send(v1::GenerateResponse response) = 0;
  // Once, and the last.
  virtual void Finish(const absl::Status& status) = 0;
  // Asks for OnWake at this time, and earlier where workers have changed. The latest call counts.
  virtual void WakeAt(TimePoint when) = 0;
  virtual uint64_t Random() = 0;  // from a cryptographic source
  // For the record: `tokens` of a choice have been shown to the client, with this or the last Send.
  virtual void OnShown(uint32_t /*choice*/, int /*tokens*/, TimePoint /*now*/) {}
};

struct SessionRequest {
  std::string request_id;
  TraceContext trace;  // the caller's, or a new one, with a span of ours
  std::vector<uint32_t> prompt;
  AnswerSpec answer;
  bool continues_text = false;  // the answer goes on with the prompt's text
  std::string cache_salt;       // which partition of the prefix cache it may hit
  std::vector<PrefixBreakpoint> breakpoints;
  std::string kv_policy;         // see kvstore/names/kv_policy.h; empty: exact
  Duration first_token_limit{};  // from `received`; 0: none
  std::string tenant;            // who takes turns with others when all workers are full
  int32_t priority = 0;
  TimePoint received;
};

struct SessionLimits {
  uint32_t max_replans = 3;
  Duration worker_wait = std::chrono::seconds(2);           // for a worker to become ready
  Duration queue_wait{};                                    // of a new request, for room
  Duration first_backoff = std::chrono::milliseconds(100);  // before the third plan; then doubled
  Duration report_wait = std::chrono::milliseconds(100);  // for the handoff's figures, with timing
  Duration move_wait = std::chrono::seconds(10);  // for a decode worker to take over; what drains
                                                  // does not stay longer
};

// One request, from plan to last token: opens a prefill and a decode call, merges their tokens into
// what the client gets, and plans anew when a worker fails, so that the client sees one unbroken
// stream. A attempt is one plan for one group of choices; after a failure, choices that have come
// to differ go on in a attempt each. When a decode worker drains, its choices move to others one by
// one: each in a attempt that becomes its owner once the KV is there, while the old attempt goes on
// till then. Pure: no I/O, no clock, no locks; one thread at a time.
class Session {
 public:
  // `stops` is of request.answer.stop. The tokenizer and the effects outlive the session.
  Session(SessionRequest request, const Tokenizer& tokenizer, const StopMatcher& stops,
          const SessionLimits& limits, SessionEffects& effects);

  void Start(TimePoint now);
  void OnPrefillEvent(int attempt, const v1::PrefillEvent& event, TimePoint now);
  void OnDecodeEvent(int attempt, const v1::DecodeEvent& event, TimePoint now);
  void OnDecodeToken(int attempt, const v1::TokenOut& token, TimePoint now);
  // The call has ended. Also where a worker is known to be lost while its call hangs.
  void OnEnded(int attempt, Side side, const absl::Status& status, TimePoint now);
  // The attempt's decode worker drains: what runs there is to move.
  void OnLeaving(int attempt, TimePoint now);
  void OnWake(TimePoint now);
  // The client has left, or its deadline has passed.
  void OnClientGone(const absl::Status& status);

  bool finished() const { return finished_; }
  const SessionTiming& timing() const { return timing_; }
  RequestTag tag() const { return {request_.request_id, request_.trace.trace_id}; }
  const TraceContext& trace() const { return request_.trace; }
  uint64_t tokens_shown() const;  // of all choices, so far
  // While it waits for a worker, news of workers is of interest.
  bool waits_for_worker() const;

 private:
  struct Attempt {
    enum class State { kWaiting, kOpen, kClosed };
    State state = State::kWaiting;
    ChoiceGroup group;
    uint64_t session = 0;  // key
    uint32_t plans_before = 0;
    TimePoint retry_at;
    TimePoint give_up_at;
    PlacedPair workers;
    bool opened = false;
    bool first_received = false;
    bool committed = false;
    bool prefill_ended = false;
    bool decode_ended = false;
    v1::SessionKey key;  // once opened
    // Moves.
    bool leaving = false;           // its decode worker drains
    std::optional<int> mover;       // the attempt that is taking a choice from it
    int moves_failed = 0;           // of its choices
    std::optional<int> source;      // takes a choice from there, and has not got it yet
    std::optional<int> moved_from;  // has got it; the Move call is open till that closes
    std::optional<v1::DecodeRequest> to_admit;  // of a mover, till its target has room
    TimePoint moving_at{};                      // when the source was told
  };
  struct Failure {
    Side side;
    absl::Status status;
  };

  void AddAttempt(ChoiceGroup group, uint64_t session, uint32_t plans_before, TimePoint now);
  void TryOpen(int attempt, TimePoint now);
  void OnNoWorker(int attempt, const absl::Status& status, TimePoint now);
  void OpenAttempt(int attempt, PlacedPair workers, TimePoint now);
  v1::SessionKey KeyOf(const Attempt& attempt);
  v1::DecodeRequest DecodeRequestOf(Attempt& attempt);
  bool Serves(int number, uint32_t choice) const;
  PlacementNeed NeedOf(const Attempt& attempt, TimePoint now) const;

  void TakeFirst(int attempt, Side side, const v1::FirstTokens& first, TimePoint now);
  void TakeToken(int attempt, Side side, const v1::TokenOut& token, TimePoint now);
  void OnKvThere(int attempt, TimePoint now);
  void AfterDecodeEvent(int attempt, TimePoint now);
  void SendChunk(uint32_t choice, TimePoint now);
  void SendFinal(uint32_t choice, TimePoint now);
  void FinishIfAnswered(TimePoint now);
  bool ReportMissing() const;

  void MoveNext(int attempt, TimePoint now);
  void TryMove(int attempt, TimePoint now);
  void OnTargetAdmitted(int attempt, TimePoint now);
  void OnMoved(int attempt, TimePoint now);
  void FailMove(int attempt, const Failure& failure, TimePoint now);
  void CloseServed();
  void CloseMovesOf(int attempt);

  void EndedEarly(int attempt, Side side, TimePoint now);
  void Fail(int attempt, const Failure& failure, TimePoint now);
  void Blame(const Attempt& attempt, Side side);
  void Replan(int attempt, const absl::Status& status, TimePoint now);
  void Close(int attempt);
  void CancelCalls(int attempt);
  std::vector<std::pair<uint32_t, uint32_t>> OwnedRuns(int attempt) const;
  void FinishWith(const absl::Status& status);
  void WakeForAttempts(TimePoint now);

  const SessionRequest request_;
  const SessionLimits limits_;
  SessionEffects& effects_;
  Journal journal_;
  std::vector<ChoiceWriter> writers_;
  std::vector<std::unique_ptr<Attempt>> attempts_;  // by attempt number; closed ones stay
  std::vector<int> owner_;                          // of each choice: a attempt
  WorkerFailures failures_;
  std::optional<KvFormat> format_;                      // of the latest plan
  std::shared_ptr<const v1::Explanation> explanation_;  // of the first plan; null: not asked for
  SessionTiming timing_;
  std::optional<v1::GenerateResponse> last_final_;  // held back for usage and timing
  std::optional<TimePoint> report_until_;
  bool finished_ = false;
};

}  // namespace penstock
