#pragma once

#include <memory>
#include <span>
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

// Room router/session: one request from its placement to its last token. Session is the pure state
// machine; SessionDriver runs it against real workers. It knows the fleet, placement and admission;
// it may not know HTTP, gRPC's public side or the OpenAI API.

// The effects of a session on the outside. Session's methods call it; it must not call back.
class SessionEffects {
 public:
  virtual ~SessionEffects() = default;
  // Errors of Place(). A new request (`is_new`) waits in the admission queue where a retry does
  // not.
  virtual absl::StatusOr<PlacedPair> Place(int attempt, bool is_new, const PlacementNeed& need,
                                           const WorkerFailures& failures) = 0;
  // Places a decode worker that takes over a choice of a draining one; only the pair's `decode` is
  // set. Errors of PlaceTarget().
  virtual absl::StatusOr<PlacedPair> PlaceTarget(int attempt, const PlacementNeed& need,
                                                 const WorkerFailures& failures) = 0;
  // Starts both calls of an attempt; their messages arrive as On...(attempt, ...).
  virtual void Open(int attempt, const PlacedPair& workers, const v1::PrefillRequest& prefill,
                    const v1::DecodeRequest& decode) = 0;
  // Starts the decode call alone: for a move, or for a local prefill.
  virtual void OpenTarget(int attempt, const PlacedPair& workers,
                          const v1::DecodeRequest& decode) = 0;
  // Starts the Move call on workers.prefill, which is the draining decode worker. The call counts
  // as the attempt's prefill side.
  virtual void Move(int attempt, const PlacedPair& workers, const v1::MoveRequest& move) = 0;
  virtual void Cancel(int attempt, Side side) = 0;
  virtual void Send(v1::GenerateResponse response) = 0;
  // Ends the session. Called once, after all other effects.
  virtual void Finish(const absl::Status& status) = 0;
  // Requests OnWake at this time, or earlier when workers have changed. Replaces an earlier
  // request.
  virtual void WakeAt(TimePoint when) = 0;
  virtual uint64_t Random() = 0;  // from a cryptographic source
  // For metrics: `tokens` tokens of a choice were sent to the client, with this or the last Send.
  virtual void OnShown(uint32_t /*choice*/, int /*tokens*/, TimePoint /*now*/) {}
};

// A checked request, ready to be placed.
struct SessionRequest {
  std::string request_id;
  TraceContext trace;            // the caller's trace or a new one, with this router's span
  std::vector<uint32_t> prompt;  // token ids
  AnswerSpec answer;
  bool continues_text = false;  // the prompt is plain text that the answer continues
  std::string echo;             // the prompt's text, if answer.echo
  uint64_t call_ids = 0;        // for the ids of tool calls
  std::string cache_salt;       // the partition of the prefix cache that it may hit
  std::vector<PrefixBreakpoint> breakpoints;
  std::string tenant_id;              // a digest of the tenant, for the quota of its pins
  std::string kv_policy;              // see kvstore/names/kv_policy.h; empty: exact
  std::vector<uint32_t> blend_parts;  // as in PrefillRequest
  Duration first_token_limit{};       // from `received`; 0: no limit
  std::string tenant;                 // for fair queueing; empty: no tenants are configured
  int32_t priority = 0;
  TimePoint received;
};

// Limits and waiting times of a session.
struct SessionLimits {
  uint32_t max_replans = 3;  // retries on other workers
  // The time that an attempt waits for a ready pair of workers.
  Duration worker_wait = std::chrono::seconds(2);
  // The time that a new request waits in the admission queue while all workers are full, or refuse
  // it because their queues have filled up since they were chosen.
  Duration queue_wait{};
  // The wait before the third attempt; it doubles for later ones.
  Duration first_backoff = std::chrono::milliseconds(100);
  // The wait for the handoff's figures after the last token, when timing is requested.
  Duration report_wait = std::chrono::milliseconds(100);
  // The time for another decode worker to take a choice over; a drain takes no longer.
  Duration move_wait = std::chrono::seconds(10);
};

// The state machine of one request, from its placement to its last token. It opens a prefill and a
// decode call, merges their tokens into one stream for the client, and retries on other workers
// when a worker fails, so that the client sees no break. An attempt serves one group of choices on
// one pair of workers; after a failure, choices whose tokens differ continue in an attempt each.
// When a decode worker drains, its choices move to others one by one: each in a new attempt, which
// owns the choice once the KV has arrived; until then the old attempt continues. Pure: no I/O, no
// clock, no locks; one thread at a time.
class Session {
 public:
  // `stops` is made from request.answer.stop. The tokenizer and the effects outlive the session.
  Session(SessionRequest request, const Tokenizer& tokenizer, const StopMatcher& stops,
          const SessionLimits& limits, SessionEffects& effects);

  void Start(TimePoint now);
  void OnPrefillEvent(int attempt, const v1::PrefillEvent& event, TimePoint now);
  void OnDecodeEvent(int attempt, const v1::DecodeEvent& event, TimePoint now);
  void OnDecodeToken(int attempt, const v1::TokenOut& token, TimePoint now);
  // The call has ended, or its worker is known to be lost while the call hangs.
  void OnEnded(int attempt, Side side, const absl::Status& status, TimePoint now);
  // The attempt's decode worker is draining: its choices should move to other workers.
  void OnDraining(int attempt, TimePoint now);
  void OnWake(TimePoint now);
  // The client has left, or its deadline has passed.
  void OnClientGone(const absl::Status& status);

  // The request, with the only copy of the prompt that outlives its preparation.
  const SessionRequest& request() const { return request_; }
  bool finished() const { return finished_; }
  const SessionTiming& timing() const { return timing_; }
  RequestTag tag() const { return {request_.request_id, request_.trace.trace_id}; }
  const TraceContext& trace() const { return request_.trace; }
  uint64_t tokens_shown() const;  // tokens sent so far, over all choices
  // True while an attempt waits for a worker: call OnWake after changes of workers.
  bool waits_for_worker() const;

 private:
  struct Attempt {
    enum class State { kWaiting, kOpen, kClosed };
    State state = State::kWaiting;
    ChoiceGroup group;
    uint64_t session = 0;  // SessionKey.session
    uint32_t epoch = 0;    // SessionKey.epoch
    uint32_t plans_before = 0;
    uint32_t refused_before = 0;  // attempts of this plan that found the queue of a worker full
    Duration waited_before{};     // the time that those attempts waited for workers
    TimePoint planned_at;
    TimePoint retry_at;
    TimePoint give_up_at;
    PlacedPair workers;
    bool opened = false;
    TimePoint opened_at;
    bool first_received = false;
    bool committed = false;
    bool prefill_ended = false;
    bool decode_ended = false;
    v1::SessionKey key;  // set once opened
    // Moves.
    bool draining = false;          // its decode worker is draining
    std::optional<int> mover;       // the attempt that a choice is moving to
    int moves_failed = 0;           // failed moves of its choices
    std::optional<int> source;      // a move in progress: the attempt that the choice comes from
    std::optional<int> moved_from;  // a completed move: the attempt that the choice came from
    std::optional<v1::DecodeRequest> to_admit;  // a move that waits for the target to admit it
    TimePoint moving_at{};                      // when the Move call was started
  };
  struct Failure {
    Side side;
    absl::Status status;
  };

  void AddAttempt(ChoiceGroup group, uint64_t session, const Attempt* before, bool full,
                  TimePoint now);
  bool IsNew(const Attempt& attempt) const;
  Duration WaitMax(const Attempt& attempt) const;
  void TryOpen(int attempt, TimePoint now);
  void OnNoWorker(int attempt, const absl::Status& status, TimePoint now);
  void OpenAttempt(int attempt, PlacedPair workers, TimePoint now);
  v1::SessionKey KeyOf(const Attempt& attempt);
  v1::DecodeRequest DecodeRequestOf(Attempt& attempt);
  bool Serves(int number, uint32_t choice) const;
  PlacementNeed NeedOf(const Attempt& attempt, TimePoint now) const;

  void AcceptScores(int attempt, const v1::PromptScores& scores, TimePoint now);
  bool WantsScores() const;
  void AcceptHiddenState(int attempt, const v1::HiddenState& state, TimePoint now);
  absl::Status CheckPromptKnown() const;
  void ShowPrompt();
  void AcceptFirst(int attempt, Side side, const v1::FirstTokens& first, TimePoint now);
  void AcceptToken(int attempt, Side side, const v1::TokenOut& token, TimePoint now);
  void ShowTokens(uint32_t choice, std::span<const v1::TokenOut> tokens, TimePoint now);
  void OnKvArrived(int attempt, TimePoint now);
  void AfterDecodeEvent(int attempt, TimePoint now);
  void SendChunk(uint32_t choice, uint32_t index, TimePoint now);
  void SendFinal(uint32_t choice, uint32_t index, TimePoint now);
  void SendBest(TimePoint now);
  void ReportPrompt(v1::Usage& usage) const;
  void ReportCompactions(v1::Usage& usage) const;
  void FinishIfAnswered(TimePoint now);
  bool ReportMissing() const;

  void MoveNext(int attempt, TimePoint now);
  void TryMove(int attempt, TimePoint now);
  void OnTargetAdmitted(int attempt, TimePoint now);
  void OnMoved(int attempt, TimePoint now);
  void FailMove(int attempt, const Failure& failure, TimePoint now);
  void CloseIdleAttempts();
  void CloseMovesOf(int attempt);

  void EndedEarly(int attempt, Side side, TimePoint now);
  void Fail(int attempt, const Failure& failure, TimePoint now);
  void CountFailure(const Attempt& attempt, Side side);
  absl::Status GiveUp(const Attempt& attempt, const absl::Status& status) const;
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
  std::vector<int> unsent_;  // by choice: tokens of its next chunk
  uint32_t finals_sent_ = 0;
  std::vector<std::unique_ptr<Attempt>> attempts_;  // by attempt number; closed attempts stay
  std::vector<int> owner_;  // by choice: the number of the attempt that serves it
  WorkerFailures failures_;
  std::optional<KvFormat> format_;  // the latest attempt's
  std::shared_ptr<const v1::Explanation>
      explanation_;  // the first attempt's; nullptr: not requested
  SessionTiming timing_;
  std::optional<v1::GenerateResponse> last_final_;  // held back until usage and timing are known
  bool prompt_reported_ = false;                    // in the first chunk
  std::vector<v1::TokenScore> scores_;  // of the prompt's tokens behind the first, so far
  bool prompt_shown_ = false;           // to the writers
  std::optional<TimePoint> report_until_;
  bool finished_ = false;
};

}  // namespace penstock
