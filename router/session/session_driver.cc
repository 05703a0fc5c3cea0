#include "router/session/session_driver.h"

#include "base/log/log.h"
#include "router/fleet/decode_link.h"
#include "router/request/error_detail.h"
#include "router/session/entropy.h"

namespace penstock {
namespace {

constexpr uint32_t kExplainedCandidates = 16;

}  // namespace

SessionDriver::SessionDriver(SessionDriverArgs args)
    : entry_(std::move(args.entry)),
      fleet_(args.fleet),
      clock_(args.clock),
      deadline_(args.deadline),
      client_(args.client),
      spans_(args.spans),
      ticket_(args.fleet.order().Enter(
          args.request.tenant, args.request.priority,
          static_cast<double>(args.request.prompt.size()) +
              args.request.answer.sampling.max_tokens() *
                  static_cast<double>(args.request.answer.sampling.choices()))),
      meter_(args.metrics,
             {.endpoint = entry_.endpoint,
              .received = args.request.received,
              .request_id = args.request.request_id,
              .trace_id = args.request.trace.trace_id,
              .tenant = entry_.caller.tenant == nullptr ? "" : entry_.caller.tenant->name()}),
      session_(std::move(args.request), args.tokenizer, args.stops, args.limits, *this) {}

// ---------------------------------------------------------------- inputs

void SessionDriver::Start() {
  MutexLock lock(mutex_);
  LogRequest(LogLevel::kDebug, session_.tag(), "request_accepted",
             {{"prompt", session_.request().prompt.size()},
              {"tenant", entry_.caller.tenant == nullptr ? "" : entry_.caller.tenant->name()}});
  session_.Start(clock_.Now());
  ListenForChanges();
}

void SessionDriver::OnClientGone(const absl::Status& status) {
  MutexLock lock(mutex_);
  session_.OnClientGone(status);
}

void SessionDriver::OnPrefillEvent(int attempt, const v1::PrefillEvent& event) {
  MutexLock lock(mutex_);
  const Calls& calls = calls_[attempt];
  if (const auto& forecast = calls.forecast; forecast != nullptr) {
    if (event.has_first()) fleet_.table().OnFirstTokens(*forecast, event.first());
    if (event.has_handoff()) fleet_.table().OnHandoff(*forecast, event.handoff());
  }
  if (event.has_handoff() && calls.transfer != nullptr) calls.transfer->OnDone(event.handoff());
  session_.OnPrefillEvent(attempt, event, clock_.Now());
  ListenForChanges();
}

void SessionDriver::OnDecodeEvent(int attempt, const v1::DecodeEvent& event) {
  MutexLock lock(mutex_);
  if (const auto& forecast = calls_[attempt].forecast; forecast != nullptr && event.has_first()) {
    fleet_.table().OnFirstTokens(*forecast, event.first());
  }
  session_.OnDecodeEvent(attempt, event, clock_.Now());
  ListenForChanges();
}

void SessionDriver::OnDecodeToken(int attempt, const v1::TokenOut& token) {
  MutexLock lock(mutex_);
  session_.OnDecodeToken(attempt, token, clock_.Now());
  ListenForChanges();
}

void SessionDriver::OnCallEnded(int attempt, Side side, const absl::Status& status) {
  MutexLock lock(mutex_);
  Calls& calls = calls_[attempt];
  (side == Side::kPrefill ? calls.prefill : calls.decode).reset();
  if (side == Side::kPrefill) calls.transfer.reset();
  session_.OnEnded(attempt, side, status, clock_.Now());
  ListenForChanges();
}

void SessionDriver::Wake() {
  MutexLock lock(mutex_);
  session_.OnWake(clock_.Now());
  ListenForChanges();
}

void SessionDriver::ListenForChanges() {
  if (listens_ || !session_.waits_for_worker()) return;
  listens_ = true;
  fleet_.CallOnChange(ticket_, [weak = weak_from_this()] {
    const std::shared_ptr<SessionDriver> self = weak.lock();
    if (self == nullptr) return;
    {
      MutexLock lock(self->mutex_);
      self->listens_ = false;
    }
    self->Wake();
  });
}

// ---------------------------------------------------------------- effects

LossListener SessionDriver::LostListener(int attempt, Side side) {
  return [weak = weak_from_this(), attempt, side](const absl::Status& status) {
    const std::shared_ptr<SessionDriver> self = weak.lock();
    if (self == nullptr) return;
    MutexLock lock(self->mutex_);
    // The call hangs: it would not end by itself.
    self->Cancel(attempt, side);
    self->session_.OnEnded(attempt, side, status, self->clock_.Now());
    self->ListenForChanges();
  };
}

std::function<void()> SessionDriver::DrainListener(int attempt) {
  return [weak = weak_from_this(), attempt] {
    const std::shared_ptr<SessionDriver> self = weak.lock();
    if (self == nullptr) return;
    MutexLock lock(self->mutex_);
    self->session_.OnDraining(attempt, self->clock_.Now());
    self->ListenForChanges();
  };
}

// Tokens of the answer are left out: after a failure, other workers have at most the prompt cached.
// The prompt is hashed once for each namespace, not once for each attempt.
void SessionDriver::NameBlocks() {
  const BlockSpace space = fleet_.table().block_space();
  if (space == ids_space_) return;
  ids_space_ = space;
  ids_ = NamePrompt(session_.request(), space);
}

// The lower one of the TTFT limit and the time left until the client's deadline; 0: no limit.
double SessionDriver::LimitMs(const PlacementNeed& need) const {
  if (deadline_ == TimePoint::max()) return need.ttft_limit_ms;
  const double left_ms = std::max(Milliseconds(deadline_ - clock_.Now()), 1e-3);
  return need.ttft_limit_ms > 0 ? std::min(need.ttft_limit_ms, left_ms) : left_ms;
}

PlacementRequest SessionDriver::RequestOf(int attempt, const PlacementNeed& need,
                                          const WorkerFailures& failures) {
  NameBlocks();
  return {.need = need,
          .ids = ids_.ids,
          .decode_ids = ids_.decode_ids,
          .explain = session_.request().answer.explain ? kExplainedCandidates : 0,
          .failures = failures,
          .on_prefill_lost = LostListener(attempt, Side::kPrefill),
          .on_decode_lost = LostListener(attempt, Side::kDecode),
          .on_decode_draining = DrainListener(attempt),
          .random = RandomU64(),
          .tenant = entry_.caller.tenant == nullptr ? "" : entry_.caller.tenant->name()};
}

absl::StatusOr<PlacedPair> SessionDriver::PlaceTarget(int attempt, const PlacementNeed& need,
                                                      const WorkerFailures& failures) {
  return fleet_.table().PlaceTarget(RequestOf(attempt, need, failures));
}

absl::StatusOr<PlacedPair> SessionDriver::Place(int attempt, bool is_new, const PlacementNeed& need,
                                                const WorkerFailures& failures) {
  PlacementRequest request = RequestOf(attempt, need, failures);
  if (!is_new) return fleet_.table().Place(request);  // a retry skips the admission queue
  request.need.ttft_limit_ms = LimitMs(need);
  return PlaceInOrder(request);
}

// Places a new request unless one that waits comes before it (AdmissionOrder).
absl::StatusOr<PlacedPair> SessionDriver::PlaceInOrder(const PlacementRequest& request) {
  AdmissionOrder& order = fleet_.order();
  absl::StatusOr<PlacedPair> placed =
      order.MustWait(ticket_)
          ? WithDetail(ResourceExhausted("every worker is full and others are waiting; try again "
                                         "in a second"),
                       {.reason = kReasonOverloaded, .retry_after = std::chrono::seconds(1)})
          : fleet_.table().Place(request);
  if (placed.ok()) {
    order.OnPlaced(ticket_);
  } else if (DetailOf(placed.status()).reason == kReasonOverloaded && !order.Enqueue(ticket_)) {
    return WithDetail(
        ResourceExhausted("every worker is full, and {} requests are waiting, which is the limit; "
                          "try again in a second",
                          order.waiting()),
        {.reason = kReasonQueueFull, .retry_after = std::chrono::seconds(1)});
  }
  return placed;
}

void SessionDriver::Open(int attempt, const PlacedPair& workers, const v1::PrefillRequest& prefill,
                         const v1::DecodeRequest& decode) {
  // The session on the decode worker is opened first, so that the prefill worker's offer finds it.
  Calls& calls = calls_[attempt];
  calls.forecast = workers.forecast;
  calls.transfer = fleet_.table().transfers().Open(
      TransferKind::kHandoff, workers.prefill.life.first, workers.decode.life.first);
  calls.decode = workers.decode.sessions->Start(ArgsOf(attempt, workers.decode), decode);
  calls.prefill = StartPrefill(ArgsOf(attempt, workers.prefill), prefill);
}

void SessionDriver::OpenTarget(int attempt, const PlacedPair& workers,
                               const v1::DecodeRequest& decode) {
  calls_[attempt].forecast = workers.forecast;
  calls_[attempt].decode = workers.decode.sessions->Start(ArgsOf(attempt, workers.decode), decode);
}

void SessionDriver::Move(int attempt, const PlacedPair& workers, const v1::MoveRequest& move) {
  calls_[attempt].transfer = fleet_.table().transfers().Open(
      TransferKind::kMove, workers.prefill.life.first, workers.decode.life.first);
  calls_[attempt].prefill = StartMove(ArgsOf(attempt, workers.prefill), move);
}

WorkerCallArgs SessionDriver::ArgsOf(int attempt, const PlacedWorker& worker) {
  return {.deadline = deadline_,
          .channel = worker.channel,
          .listener = shared_from_this(),
          .attempt = attempt,
          .trace = session_.trace()};
}

void SessionDriver::Cancel(int attempt, Side side) {
  Calls& calls = calls_[attempt];
  WorkerCall* call = (side == Side::kPrefill ? calls.prefill : calls.decode).get();
  if (call != nullptr) call->Cancel();
}

void SessionDriver::Send(v1::GenerateResponse response) {
  meter_.OnSent(response);
  client_.Send(std::move(response));
}

void SessionDriver::OnShown(uint32_t choice, int tokens, TimePoint now) {
  meter_.OnShown(choice, tokens, now);
}

void SessionDriver::Finish(const absl::Status& status) {
  timer_.Clear();
  meter_.OnFinished(status, session_.timing(), clock_.Now());
  LogEnd(status);
  ExportSpans(status);
  fleet_.order().Remove(ticket_);
  if (Tenant* const tenant = entry_.caller.tenant.get(); tenant != nullptr) {
    tenant->Charge(session_.tokens_shown(), clock_.Now());
  }
  client_.Finish(status);
}

void SessionDriver::WakeAt(TimePoint when) {
  timer_.Set(when - clock_.Now(), [weak = weak_from_this()] {
    if (const std::shared_ptr<SessionDriver> self = weak.lock()) self->Wake();
  });
}

// Logs one line for each request, with its id first.
void SessionDriver::LogEnd(const absl::Status& status) const {
  const SessionTiming& timing = session_.timing();
  const v1::Timing report = timing.Report();
  const auto ms = [](const google::protobuf::Duration& time) {
    return static_cast<double>(time.seconds()) * 1e3 + time.nanos() / 1e6;
  };
  const bool ours = OutcomeOf(status) == kServerError;
  LogRequest(ours ? LogLevel::kWarning : LogLevel::kInfo, session_.tag(), "request_finished",
             {{"status", absl::StatusCodeToString(status.code())},
              {"error", Message(status)},
              {"prompt", timing.prompt_tokens()},
              {"cached", timing.cached_tokens()},
              {"recomputed", timing.recomputed_tokens()},
              {"output", meter_.tokens()},
              {"first_token_ms", ms(report.first_token())},
              {"queue_ms", ms(report.queue())},
              {"prefill_ms", ms(report.prefill())},
              {"exposed_ms", ms(report.kv_transfer())},
              {"decode_ms", ms(report.decode())},
              {"migrations", report.migrations()},
              {"prefill_worker", report.prefill_worker()},
              {"decode_worker", report.decode_worker()},
              {"transport", report.transport()}});
}

void SessionDriver::ExportSpans(const absl::Status& status) const {
  if (spans_ == nullptr) return;
  spans_->Export({.endpoint = entry_.endpoint,
                  .request_id = session_.tag().request,
                  .trace = session_.trace(),
                  .status = status,
                  .timing = session_.timing(),
                  .output_tokens = meter_.tokens(),
                  .end = clock_.Now()});
}

uint64_t SessionDriver::Random() { return RandomU64(); }

}  // namespace penstock
