// Session: the events of workers, and the answer that becomes of them.

#include <algorithm>
#include <utility>

#include "base/log/log.h"
#include "kvstore/names/kv_policy.h"
#include "router/session/best_choices.h"
#include "router/session/session.h"

namespace penstock {

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
    timing_.OnAttention(token);
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
  timing_.ReportBlend(usage);
}

// What the answer's choices had evicted while they were decoded: the schedule depends on their
// lengths alone. The last step of a choice computes its last token but one.
void Session::ReportCompactions(v1::Usage& usage) const {
  const auto eviction = EvictionOf(request_.kv_policy);
  if (!eviction || !eviction->EvictsAnswer()) return;
  const auto prompt = static_cast<uint32_t>(request_.prompt.size());
  uint32_t evicted = 0;
  for (uint32_t choice = 0; choice < writers_.size(); ++choice) {
    const auto answered = static_cast<uint32_t>(journal_.answered(choice).size());
    if (answered < 2) continue;
    evicted += eviction->EvictedAt(prompt, prompt + answered - 2) - eviction->Evicted(prompt);
  }
  usage.set_decode_evicted_tokens(evicted);
  usage.set_compactions(evicted / eviction->slack_tokens);
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
  ReportCompactions(*ending.mutable_usage());
  ending.mutable_usage()->set_attended_tokens(timing_.attended_tokens());
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

}  // namespace penstock
