#include "router/session/session.h"

#include <algorithm>
#include <utility>

#include "base/log/log.h"
#include "kvstore/names/kv_policy.h"
#include "router/request/error_detail.h"
#include "router/session/session_request.h"

namespace penstock {

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
  need.evicted_tokens = EvictedTokens(
      request_.kv_policy, static_cast<uint32_t>(request_.prompt.size()), need.prompt_tokens);
  need.answer_tokens -= answered;
  need.choices = attempt.group.count;
  if (tokens_shown() > 0) need.format = format_;
  need.may_prefill_locally &= attempt.plans_before == 0;
  if (prompt_shown_) need.may_skip_prefill = KeepsPromptExact(request_.kv_policy);
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
  prefill.mutable_blend_parts()->Assign(request_.blend_parts.begin(), request_.blend_parts.end());
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
  if (const std::optional<EmbeddingSpec>& embedding = request_.answer.embedding) {
    prefill.set_hidden_state(true);
    prefill.set_hidden_mean(embedding->pooling == Pooling::kMean);
    if (prefill.hidden_mean()) prefill.clear_peer();
  }
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

}  // namespace penstock
