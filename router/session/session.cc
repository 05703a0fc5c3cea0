#include "router/session/session.h"

#include <algorithm>
#include <utility>

#include "base/check.h"
#include "base/log/log.h"
#include "router/request/error_detail.h"
#include "router/session/best_choices.h"
#include "router/session/session_request.h"

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

Session::Session(SessionRequest request, const Tokenizer& tokenizer, const StopMatcher& stops,
                 const SessionLimits& limits, SessionEffects& effects)
    : request_(std::move(request)),
      limits_(limits),
      effects_(effects),
      journal_(request_.answer.sampling.choices(), request_.answer.sampling.max_tokens()),
      owner_(request_.answer.sampling.choices(), 0),
      timing_(request_.received, static_cast<uint32_t>(request_.prompt.size())) {
  for (uint32_t i = 0; i < request_.answer.sampling.choices(); ++i) {
    unsent_.push_back(0);
    writers_.emplace_back(ChoiceWriter::Args{.index = i,
                                             .tokenizer = tokenizer,
                                             .spec = request_.answer,
                                             .continues_text = request_.continues_text,
                                             .call_ids = request_.call_ids},
                          stops);
  }
}

void Session::Start(TimePoint now) {
  if (finished_) return;  // the client has left already
  timing_.OnStarted(now);
  AddAttempt({.first = 0, .count = request_.answer.sampling.choices()}, effects_.Random(),
             /*before=*/nullptr, /*full=*/false, now);
  TryOpen(0, now);
  WakeForAttempts(now);
}

// ---------------------------------------------------------------- plans

// `before` is the attempt that has failed. With `full` the queue of one of its workers was full:
// nothing has failed then, and the plan is tried again.
void Session::AddAttempt(ChoiceGroup group, uint64_t session, const Attempt* before, bool full,
                         TimePoint now) {
  auto attempt = std::make_unique<Attempt>();
  attempt->group = std::move(group);
  for (uint32_t i = 0; i < attempt->group.count; ++i) {
    owner_[attempt->group.first + i] = static_cast<int>(attempts_.size());
  }
  attempt->session = session;
  attempt->planned_at = attempt->retry_at = now;
  if (before != nullptr) {
    attempt->epoch = before->epoch + 1;
    attempt->plans_before = before->plans_before + (full ? 0 : 1);
    attempt->refused_before = full ? before->refused_before + 1 : 0;
    if (full)
      attempt->waited_before = before->waited_before + (before->opened_at - before->planned_at);
  }
  // The first retry is immediate: most failures are of one worker. Later ones back off
  // exponentially, which gives the fleet time to detect failed workers.
  const uint32_t retries = attempt->plans_before + attempt->refused_before;
  if (retries > 1) attempt->retry_at += limits_.first_backoff * (1 << std::min(retries - 2, 4u));
  if (full) {
    const TimePoint last = now + std::max(WaitMax(*attempt) - attempt->waited_before, Duration());
    attempt->retry_at = std::min(attempt->retry_at, last);
    attempt->give_up_at = last;
  } else {
    attempt->give_up_at = attempt->retry_at + limits_.worker_wait;
  }
  attempts_.push_back(std::move(attempt));
}

// True for an attempt of a request that no worker has failed and that has not begun to be answered.
bool Session::IsNew(const Attempt& attempt) const {
  return attempt.plans_before == 0 && tokens_shown() == 0;
}

// The time that a plan may wait while all workers are full.
Duration Session::WaitMax(const Attempt& attempt) const {
  return IsNew(attempt) ? limits_.queue_wait : limits_.worker_wait;
}

PlacementNeed Session::NeedOf(const Attempt& attempt, TimePoint now) const {
  const auto answered = static_cast<uint32_t>(attempt.group.answered.size());
  PlacementNeed need = NeedOfNew(request_, now);
  need.prompt_tokens += answered;
  need.answer_tokens -= answered;
  need.choices = attempt.group.count;
  if (tokens_shown() > 0) need.format = format_;
  need.may_prefill_locally &= attempt.plans_before == 0;
  if (prompt_shown_) need.may_skip_prefill = request_.kv_policy.empty();
  // The TTFT limit refuses new requests only, never a request that has started.
  if (!IsNew(attempt)) need.ttft_limit_ms = 0;
  return need;
}

void Session::TryOpen(int number, TimePoint now) {
  Attempt& attempt = *attempts_[number];
  if (finished_ || attempt.state != Attempt::State::kWaiting || now < attempt.retry_at) return;
  if (attempt.source) return TryMove(number, now);
  absl::StatusOr<PlacedPair> workers =
      effects_.Place(number, IsNew(attempt), NeedOf(attempt, now), failures_);
  if (workers.ok()) {
    OpenAttempt(number, *std::move(workers), now);
  } else {
    OnNoWorker(number, workers.status(), now);
  }
}

void Session::OnNoWorker(int number, const absl::Status& status, TimePoint now) {
  Attempt& attempt = *attempts_[number];
  // A new request waits in the admission queue for queue_wait; a retry waits for worker_wait.
  const bool queued = DetailOf(status).reason == kReasonOverloaded;
  if (queued && IsNew(attempt) && attempt.refused_before == 0)
    attempt.give_up_at = attempt.retry_at + limits_.queue_wait;
  const bool worth_waiting = absl::IsUnavailable(status) || queued ||
                             (absl::IsResourceExhausted(status) && !IsNew(attempt));
  if (!worth_waiting || now >= attempt.give_up_at) FinishWith(status);
}

v1::SessionKey Session::KeyOf(const Attempt& attempt) {
  v1::SessionKey key;
  key.set_session(attempt.session);
  key.set_epoch(attempt.epoch);
  key.set_nonce(effects_.Random());
  return key;
}

v1::DecodeRequest Session::DecodeRequestOf(Attempt& attempt) {
  attempt.key = KeyOf(attempt);
  v1::DecodeRequest decode;
  *decode.mutable_key() = attempt.key;
  decode.set_request_id(request_.request_id);
  decode.mutable_tokens()->Add(request_.prompt.begin(), request_.prompt.end());
  decode.mutable_tokens()->Add(attempt.group.answered.begin(), attempt.group.answered.end());
  decode.set_prompt_tokens(static_cast<uint32_t>(request_.prompt.size()));
  decode.set_cache_salt(request_.cache_salt);
  for (const PrefixBreakpoint& breakpoint : request_.breakpoints) {
    v1::PrefixPin& pin = *decode.add_pins();
    pin.set_tokens(breakpoint.tokens);
    pin.set_ttl_ms(static_cast<uint32_t>(Milliseconds(breakpoint.ttl)));
  }
  decode.set_tenant_id(request_.tenant_id);
  decode.set_kv_policy(request_.kv_policy);
  *decode.mutable_sampling() = request_.answer.sampling;
  decode.mutable_sampling()->set_first_choice(attempt.group.first);
  decode.mutable_sampling()->set_choices(attempt.group.count);
  return decode;
}

void Session::OpenAttempt(int number, PlacedPair workers, TimePoint now) {
  Attempt& attempt = *attempts_[number];
  v1::DecodeRequest decode = DecodeRequestOf(attempt);
  attempt.state = Attempt::State::kOpen;
  attempt.opened = true;
  attempt.opened_at = now;
  attempt.workers = std::move(workers);
  decode.set_role_epoch(attempt.workers.decode.role_epoch);
  decode.set_incarnation(attempt.workers.decode.life.second);
  format_ = attempt.workers.format;
  if (explanation_ == nullptr) explanation_ = attempt.workers.explanation;
  timing_.OnOpened(attempt.workers.prefill.worker_id, attempt.workers.decode.worker_id, now);
  LogRequest(LogLevel::kDebug, tag(), "request_placed",
             {{"plan", attempt.plans_before},
              {"prefill_worker", attempt.workers.prefill.worker_id},
              {"decode_worker", attempt.workers.decode.worker_id}});
  if (attempt.workers.local_prefill) {
    decode.set_prefill(true);
    decode.set_prefill_alone(attempt.workers.alone);
    attempt.prefill_ended = true;
    return effects_.OpenTarget(number, attempt.workers, decode);
  }
  v1::PrefillRequest prefill;
  *prefill.mutable_key() = decode.key();
  prefill.set_request_id(decode.request_id());
  *prefill.mutable_tokens() = decode.tokens();
  prefill.set_prompt_tokens(decode.prompt_tokens());
  prefill.set_cache_salt(decode.cache_salt());
  *prefill.mutable_pins() = decode.pins();
  prefill.set_tenant_id(decode.tenant_id());
  prefill.set_kv_policy(decode.kv_policy());
  *prefill.mutable_sampling() = decode.sampling();
  prefill.set_role_epoch(attempt.workers.prefill.role_epoch);
  prefill.set_incarnation(attempt.workers.prefill.life.second);
  prefill.set_decode_endpoint(attempt.workers.decode.life.first);
  if (attempt.workers.peer) *prefill.mutable_peer() = *attempt.workers.peer;
  if (WantsScores()) {
    scores_.clear();  // of an attempt that failed
    prefill.mutable_scoring()->set_top_logprobs(request_.answer.prompt_alternatives());
    prefill.clear_peer();
  }
  prefill.set_hidden_state(request_.answer.embedding.has_value());
  effects_.Open(number, attempt.workers, prefill, decode);
}

bool Session::waits_for_worker() const {
  return !finished_ && std::any_of(attempts_.begin(), attempts_.end(), [](const auto& attempt) {
    return attempt->state == Attempt::State::kWaiting;
  });
}

void Session::OnWake(TimePoint now) {
  for (size_t i = 0; i < attempts_.size() && !finished_; ++i) TryOpen(static_cast<int>(i), now);
  if (!finished_ && report_until_ && now >= *report_until_) FinishIfAnswered(now);
  WakeForAttempts(now);
}

void Session::WakeForAttempts(TimePoint now) {
  if (finished_) return;
  std::optional<TimePoint> earliest = report_until_;
  for (const auto& attempt : attempts_) {
    if (attempt->state != Attempt::State::kWaiting) continue;
    // Between retry_at and give_up_at, changes of workers wake the session.
    const TimePoint next = now < attempt->retry_at ? attempt->retry_at : attempt->give_up_at;
    earliest = earliest ? std::min(*earliest, next) : next;
  }
  if (earliest) effects_.WakeAt(*earliest);
}

// ---------------------------------------------------------------- tokens

void Session::OnPrefillEvent(int number, const v1::PrefillEvent& event, TimePoint now) {
  Attempt& attempt = *attempts_[number];
  if (finished_ || attempt.source || attempt.moved_from)
    return;  // the call of a move: its target reports the completion
  if (event.has_handoff()) {
    timing_.OnHandoff(event.handoff());
    attempt.committed = true;
    return;
  }
  if (attempt.state != Attempt::State::kOpen) return;
  if (event.has_scores()) AcceptScores(number, event.scores(), now);
  if (event.has_hidden_state()) AcceptHiddenState(number, event.hidden_state(), now);
  if (!event.has_first() || attempt.state != Attempt::State::kOpen) return WakeForAttempts(now);
  AcceptFirst(number, Side::kPrefill, event.first(), now);
  if (attempt.decode_ended && attempt.state == Attempt::State::kOpen)
    EndedEarly(number, Side::kDecode, now);
  MoveNext(number, now);
  FinishIfAnswered(now);
  WakeForAttempts(now);
}

void Session::OnDecodeEvent(int number, const v1::DecodeEvent& event, TimePoint now) {
  Attempt& attempt = *attempts_[number];
  if (finished_ || attempt.state != Attempt::State::kOpen) return;
  if (event.has_admitted())
    attempt.source ? OnTargetAdmitted(number, now) : timing_.OnAdmitted(now);
  if (event.has_committed()) {
    OnKvArrived(number, now);
    timing_.OnCommitted(now);
  }
  if (event.has_first() && attempt.workers.local_prefill) {
    attempt.committed = true;  // a local prefill: the KV is on the decode worker
    AcceptFirst(number, Side::kDecode, event.first(), now);
  }
  AfterDecodeEvent(number, now);
}

void Session::OnDecodeToken(int number, const v1::TokenOut& token, TimePoint now) {
  if (finished_ || attempts_[number]->state != Attempt::State::kOpen) return;
  OnKvArrived(number, now);
  AcceptToken(number, Side::kDecode, token, now);
  AfterDecodeEvent(number, now);
}

void Session::OnKvArrived(int number, TimePoint now) {
  if (attempts_[number]->source) OnMoved(number, now);
  attempts_[number]->committed = true;
}

void Session::AfterDecodeEvent(int number, TimePoint now) {
  MoveNext(number, now);
  FinishIfAnswered(now);
  WakeForAttempts(now);
}

void Session::AcceptFirst(int number, Side side, const v1::FirstTokens& first, TimePoint now) {
  Attempt& attempt = *attempts_[number];
  if (attempt.first_received) return;
  if (const absl::Status known = CheckPromptKnown(); !known.ok()) {
    return Fail(number, {side, known}, now);
  }
  ShowPrompt();
  attempt.first_received = true;
  attempt.workers.prefill.reservation.Release();
  timing_.OnFirstTokens(first, attempt.plans_before > 0, now);
  if (tokens_shown() == 0) {
    LogRequest(LogLevel::kDebug, tag(), "first_token",
               {{"after_ms", Milliseconds(now - request_.received)},
                {"cached", first.cached_tokens()},
                {"computed", first.computed_tokens()}});
  }
  // Those of a beam search are candidates: the decode worker sends the answers when it has ended.
  if (request_.answer.sampling.has_beams()) return;
  for (const v1::TokenOut& token : first.tokens()) AcceptToken(number, side, token, now);
}

void Session::AcceptToken(int number, Side side, const v1::TokenOut& token, TimePoint now) {
  Attempt& attempt = *attempts_[number];
  if (finished_ || attempt.state != Attempt::State::kOpen) return;
  const bool ours = token.choice() >= attempt.group.first &&
                    token.choice() - attempt.group.first < attempt.group.count;
  auto in_order = ours ? journal_.Accept(token)
                       : DataLoss("a worker sent a token of choice {}, which it was not asked for",
                                  token.choice());
  if (!in_order.ok()) return Fail(number, {side, in_order.status()}, now);
  if (!in_order->empty()) ShowTokens(token.choice(), *in_order, now);
  if (journal_.ended(token.choice())) CloseIdleAttempts();
}

void Session::ShowTokens(uint32_t choice, std::span<const v1::TokenOut> tokens, TimePoint now) {
  ChoiceWriter& writer = writers_[choice];
  for (const v1::TokenOut& token : tokens) {
    timing_.OnToken(now);
    // The tokens of a beam search come at once, and none of them was guessed.
    if (!request_.answer.sampling.has_beams()) timing_.OnGuesses(token);
    ++unsent_[choice];
    writer.Add(token);
    if (writer.ended()) break;
  }
  // The other tokens of the worker's step follow at once, and leave in the same chunk.
  if (tokens.back().more_in_step() > 0 && !writer.ended()) return;
  if (!request_.answer.keeps_best()) return SendChunk(choice, choice, now);
  if (!writer.ended()) return;
  journal_.End(choice);
  if (journal_.all_ended(0, request_.answer.sampling.choices())) SendBest(now);
}

// Sends the best choices, each whole.
void Session::SendBest(TimePoint now) {
  std::vector<ChoiceScore> scores;
  for (const ChoiceWriter& writer : writers_) {
    scores.push_back({.logprob = writer.ending().cumulative_logprob(), .tokens = writer.tokens()});
  }
  uint32_t index = 0;
  for (const uint32_t choice : BestChoices(scores, request_.answer.answers)) {
    SendChunk(choice, index++, now);
  }
}

bool Session::Serves(int number, uint32_t choice) const {
  return !journal_.ended(choice) && (owner_[choice] == number || attempts_[number]->source);
}

// Closes the attempts that have no choice to answer any more.
void Session::CloseIdleAttempts() {
  for (size_t i = 0; i < attempts_.size(); ++i) {
    const auto number = static_cast<int>(i);
    Attempt& attempt = *attempts_[i];
    const bool alive = attempt.state == Attempt::State::kOpen || attempt.source;
    if (!alive || attempt.state == Attempt::State::kClosed) continue;
    bool serves = false;
    for (uint32_t j = 0; j < attempt.group.count; ++j)
      serves |= Serves(number, attempt.group.first + j);
    if (serves) continue;
    Close(number);
    if (attempt.source) {
      attempts_[*attempt.source]->mover.reset();
      CancelCalls(number);
    } else if (!attempt.decode_ended) {
      // The prefill call stays open: the handoff's figures are still to come.
      effects_.Cancel(number, Side::kDecode);
    }
  }
}

// Sends the choice's new output as that of the client's choice `index`.
void Session::SendChunk(uint32_t choice, uint32_t index, TimePoint now) {
  ChoiceWriter& writer = writers_[choice];
  if (std::optional<v1::Chunk> chunk = writer.TakeChunk()) {
    v1::GenerateResponse response;
    response.mutable_chunk()->Swap(&*chunk);
    response.mutable_chunk()->set_index(index);
    if (!prompt_reported_) ReportPrompt(*response.mutable_chunk()->mutable_prompt_usage());
    prompt_reported_ = true;
    timing_.OnSent(now);
    effects_.Send(std::move(response));
  }
  if (writer.ended()) SendFinal(choice, index, now);
  effects_.OnShown(index, std::exchange(unsent_[choice], 0), now);
}

void Session::ReportPrompt(v1::Usage& usage) const {
  usage.set_prompt_tokens(static_cast<uint32_t>(request_.prompt.size()));
  usage.set_cached_tokens(timing_.cached_tokens());
  usage.set_pinned_tokens(timing_.pinned_tokens());
  usage.set_evicted_tokens(timing_.evicted_tokens());
}

void Session::SendFinal(uint32_t choice, uint32_t index, TimePoint now) {
  journal_.End(choice);
  v1::GenerateResponse response;
  v1::Final& ending = *response.mutable_final();
  ending = writers_[choice].ending();
  ending.set_index(index);
  ending.set_request_id(request_.request_id);
  ending.set_system_fingerprint(
      fmt::format("{:016x}-{:016x}", format_->model_fingerprint, format_->layout_fingerprint));
  timing_.OnSent(now);
  if (++finals_sent_ == request_.answer.answers) {
    last_final_ = std::move(response);
  } else {
    effects_.Send(std::move(response));
  }
}

// True while the handoff's figures are missing: the prefill call may end after the last token.
bool Session::ReportMissing() const {
  return request_.answer.timing &&
         std::any_of(attempts_.begin(), attempts_.end(), [](const auto& attempt) {
           return attempt->first_received && !attempt->prefill_ended && attempt->committed &&
                  !attempt->moved_from;
         });
}

void Session::FinishIfAnswered(TimePoint now) {
  if (finished_ || !last_final_) return;
  if (!report_until_) report_until_ = now + limits_.report_wait;
  if (ReportMissing() && now < *report_until_) return;
  v1::Final& ending = *last_final_->mutable_final();
  ReportPrompt(*ending.mutable_usage());
  ending.mutable_usage()->set_completion_tokens(static_cast<uint32_t>(tokens_shown()));
  ending.mutable_usage()->set_recomputed_tokens(timing_.recomputed_tokens());
  for (const ChoiceWriter& writer : writers_) {
    ending.mutable_usage()->set_reasoning_tokens(ending.usage().reasoning_tokens() +
                                                 static_cast<uint32_t>(writer.reasoning_tokens()));
  }
  ending.mutable_usage()->set_accepted_draft_tokens(timing_.accepted_guesses());
  ending.mutable_usage()->set_rejected_draft_tokens(timing_.rejected_guesses());
  if (request_.answer.timing) {
    *ending.mutable_timing() = timing_.Report();
    ending.mutable_timing()->set_trace_id(request_.trace.trace_id);
  }
  if (explanation_ != nullptr) {
    *ending.mutable_explanation() = *explanation_;
    *ending.mutable_explanation()->mutable_real_first_token() = timing_.FirstTokenAfterPlan();
  }
  effects_.Send(*std::move(last_final_));
  FinishWith(absl::OkStatus());
}

// ---------------------------------------------------------------- ends

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
