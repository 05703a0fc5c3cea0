// Session: the ends of calls and attempts, retries on other workers, and the session's own end.

#include <algorithm>
#include <utility>

#include "base/check.h"
#include "base/log/log.h"
#include "router/request/error_detail.h"
#include "router/session/session.h"

namespace penstock {
namespace {

// True when the worker or the connection to it failed, and not the request: a retry can help.
bool IsRetryable(const absl::Status& status) {
  switch (status.code()) {
    case absl::StatusCode::kUnavailable:
    case absl::StatusCode::kDataLoss:
    case absl::StatusCode::kAborted:
    case absl::StatusCode::kCancelled:         // by the worker: a session closes an attempt first
    case absl::StatusCode::kDeadlineExceeded:  // the worker's: the client's ends the session
    case absl::StatusCode::kResourceExhausted:
    case absl::StatusCode::kFailedPrecondition:
      return true;
    default:
      return false;
  }
}

std::string_view NameOf(Side side) { return side == Side::kPrefill ? "prefill" : "decode"; }

}  // namespace

void Session::OnEnded(int number, Side side, const absl::Status& status, TimePoint now) {
  Attempt& attempt = *attempts_[number];
  (side == Side::kPrefill ? attempt.prefill_ended : attempt.decode_ended) = true;
  if (finished_) return;
  if (attempt.state != Attempt::State::kOpen) {
    FinishIfAnswered(now);
    return;
  }
  // The prefill worker has done its part: its call may end.
  const bool prefill_done = attempt.first_received && (status.ok() || attempt.committed);
  if (side == Side::kPrefill && prefill_done) return;
  // The two calls race: all tokens but the first may have arrived.
  if (side == Side::kDecode && status.ok() && !attempt.first_received) return;
  if (status.ok()) {
    EndedEarly(number, side, now);
  } else {
    Fail(number, {side, status}, now);
  }
  WakeForAttempts(now);
}

void Session::EndedEarly(int number, Side side, TimePoint now) {
  Fail(number, {side, DataLoss("the call ended before the answer did")}, now);
}

void Session::Fail(int number, const Failure& failure, TimePoint now) {
  Attempt& attempt = *attempts_[number];
  if (attempt.source) return FailMove(number, failure, now);
  const PlacedWorker& worker =
      failure.side == Side::kPrefill ? attempt.workers.prefill : attempt.workers.decode;
  const absl::Status status =
      Annotate(failure.status, fmt::format("{} worker {}", NameOf(failure.side), worker.worker_id));
  CountFailure(attempt, failure.side);
  Close(number);
  CancelCalls(number);
  if (!IsRetryable(status)) return FinishWith(absl::InternalError(Message(status)));
  Replan(number, status, now);
}

// Counts a failure against the workers, so that a retry avoids them. Before the commit, a failure
// seen on one side may be caused by the other; the side that saw it is the more likely cause and
// counts double.
void Session::CountFailure(const Attempt& attempt, Side side) {
  const WorkerLife& seen =
      side == Side::kPrefill ? attempt.workers.prefill.life : attempt.workers.decode.life;
  const WorkerLife& other =
      side == Side::kPrefill ? attempt.workers.decode.life : attempt.workers.prefill.life;
  failures_[seen] += 2;
  if (!attempt.committed && !attempt.workers.local_prefill) failures_[other] += 1;
}

// The end of a request whose attempt has failed, or OK if it is worth another attempt. A worker
// whose queue is full has not failed: that costs no plan, but the time that a request may wait.
absl::Status Session::GiveUp(const Attempt& attempt, const absl::Status& status) const {
  if (absl::IsResourceExhausted(status)) {
    const Duration waited = attempt.waited_before + (attempt.opened_at - attempt.planned_at);
    if (attempt.refused_before == 0 || waited < WaitMax(attempt)) return absl::OkStatus();
    return WithDetail(ResourceExhausted("the queues of the workers were full at every attempt; try "
                                        "again in a second: {}",
                                        Message(status)),
                      {.reason = kReasonOverloaded, .retry_after = std::chrono::seconds(1)});
  }
  if (attempt.plans_before < limits_.max_replans) return absl::OkStatus();
  return Unavailable("gave up after {} plans, the last of which failed: {}",
                     attempt.plans_before + 1, Message(status));
}

void Session::Replan(int number, const absl::Status& status, TimePoint now) {
  const Attempt& attempt = *attempts_[number];
  const absl::Status end = GiveUp(attempt, status);
  if (!end.ok()) return FinishWith(end);
  LogRequest(LogLevel::kInfo, tag(), "request_replanned",
             {{"plan", attempt.plans_before + 1}, {"error", Message(status)}});
  timing_.OnReplan(status, now);
  const size_t first_new = attempts_.size();
  uint64_t session = attempt.session;
  const bool full = absl::IsResourceExhausted(status);
  // Choices that have moved to other attempts continue there.
  for (const auto& [first, count] : OwnedRuns(number)) {
    journal_.DropEarly(first, count);
    for (ChoiceGroup& group : journal_.OpenGroups(first, count)) {
      AddAttempt(std::move(group), session, &attempt, full, now);
      session = effects_.Random();  // one epoch of one session is one attempt
    }
  }
  for (size_t i = first_new; i < attempts_.size(); ++i) TryOpen(static_cast<int>(i), now);
}

// The runs of consecutive choices that the attempt still owns: the first choice and their number.
std::vector<std::pair<uint32_t, uint32_t>> Session::OwnedRuns(int number) const {
  const ChoiceGroup& group = attempts_[number]->group;
  std::vector<std::pair<uint32_t, uint32_t>> runs;
  for (uint32_t choice = group.first; choice < group.first + group.count; ++choice) {
    if (owner_[choice] != number) continue;
    const bool joins = !runs.empty() && runs.back().first + runs.back().second == choice;
    if (joins) {
      ++runs.back().second;
    } else {
      runs.emplace_back(choice, 1);
    }
  }
  return runs;
}

void Session::Close(int number) {
  Attempt& attempt = *attempts_[number];
  attempt.state = Attempt::State::kClosed;
  CloseMovesOf(number);
  attempt.workers.prefill.reservation.Release();
  attempt.workers.decode.reservation.Release();
}

void Session::CancelCalls(int number) {
  const Attempt& attempt = *attempts_[number];
  if (!attempt.opened) return;
  if (!attempt.prefill_ended) effects_.Cancel(number, Side::kPrefill);
  if (!attempt.decode_ended) effects_.Cancel(number, Side::kDecode);
}

uint64_t Session::tokens_shown() const {
  uint64_t sum = 0;
  for (const ChoiceWriter& writer : writers_) sum += writer.tokens();
  return sum;
}

void Session::OnClientGone(const absl::Status& status) {
  if (!finished_) FinishWith(status);
}

void Session::FinishWith(const absl::Status& status) {
  PENSTOCK_CHECK(!finished_);
  finished_ = true;
  for (size_t i = 0; i < attempts_.size(); ++i) {
    Close(static_cast<int>(i));
    CancelCalls(static_cast<int>(i));
  }
  effects_.Finish(status);
}

}  // namespace penstock
