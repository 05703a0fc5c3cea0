// Session: moves choices off a draining decode worker.

#include <algorithm>

#include "base/check.h"
#include "base/log/log.h"
#include "router/session/session.h"

namespace penstock {
namespace {

// The limit of failed moves of one attempt. After it, the other choices stay until the worker ends
// them, and are then recomputed on another worker.
constexpr int kMovesFailedMax = 3;

}  // namespace

void Session::OnDraining(int number, TimePoint now) {
  Attempt& attempt = *attempts_[number];
  if (finished_ || attempt.state != Attempt::State::kOpen || attempt.draining) return;
  attempt.draining = true;
  MoveNext(number, now);
  WakeForAttempts(now);
}

// Starts the move of the next choice. One choice moves at a time: the target then has the prompt's
// KV cached for the others.
void Session::MoveNext(int number, TimePoint now) {
  Attempt& attempt = *attempts_[number];
  const bool may_move = attempt.draining && attempt.state == Attempt::State::kOpen &&
                        attempt.committed && !attempt.source && !attempt.mover &&
                        attempt.moves_failed < kMovesFailedMax;
  if (finished_ || !may_move) return;
  for (uint32_t choice = attempt.group.first; choice < attempt.group.first + attempt.group.count;
       ++choice) {
    if (!Serves(number, choice) || journal_.answered(choice).empty()) continue;
    auto mover = std::make_unique<Attempt>();
    mover->group = {.first = choice, .count = 1, .answered = {}};
    mover->session = effects_.Random();  // one epoch of one session is one attempt
    mover->epoch = attempt.epoch;
    mover->plans_before = attempt.plans_before;
    mover->retry_at = now + attempt.moves_failed * limits_.first_backoff;
    mover->give_up_at = mover->retry_at + limits_.move_wait;
    mover->source = number;
    attempt.mover = static_cast<int>(attempts_.size());
    attempts_.push_back(std::move(mover));
    return TryMove(*attempt.mover, now);
  }
}

void Session::TryMove(int number, TimePoint now) {
  Attempt& attempt = *attempts_[number];
  if (now < attempt.retry_at) return;
  const Attempt& source = *attempts_[*attempt.source];
  // The tokens so far. The source continues until it is paused; the target generates the same
  // tokens again, and the journal drops the duplicates.
  attempt.group.answered = journal_.answered(attempt.group.first);
  attempt.group.answered.pop_back();
  PlacementNeed need = NeedOf(attempt, now);
  need.format = source.workers.format;
  need.ttft_limit_ms = 0;
  absl::StatusOr<PlacedPair> workers = effects_.PlaceTarget(number, need, failures_);
  if (!workers.ok()) {
    if (now >= attempt.give_up_at) FailMove(number, {Side::kPrefill, workers.status()}, now);
    return;
  }
  const PlacedWorker& from = source.workers.decode;
  workers->prefill = {.life = from.life,
                      .role_epoch = from.role_epoch,
                      .worker_id = from.worker_id,
                      .channel = from.channel,
                      .sessions = from.sessions,
                      .reservation = {}};
  attempt.state = Attempt::State::kOpen;
  attempt.opened = true;
  attempt.workers = *std::move(workers);
  attempt.to_admit = DecodeRequestOf(attempt);
  attempt.to_admit->set_role_epoch(attempt.workers.decode.role_epoch);
  attempt.to_admit->set_incarnation(attempt.workers.decode.life.second);
  effects_.OpenTarget(number, attempt.workers, *attempt.to_admit);
}

// The target has admitted the choice: starts the Move call, which pauses the choice on its source.
// Starting it earlier would pause the choice while the target waits for free blocks.
void Session::OnTargetAdmitted(int number, TimePoint now) {
  Attempt& attempt = *attempts_[number];
  if (!attempt.to_admit) return;
  const v1::DecodeRequest decode = *std::exchange(attempt.to_admit, std::nullopt);
  v1::MoveRequest move;
  *move.mutable_key() = attempt.key;
  *move.mutable_source() = attempts_[*attempt.source]->key;
  move.set_request_id(request_.request_id);
  move.set_choice(attempt.group.first);
  *move.mutable_tokens() = decode.tokens();
  move.set_prompt_tokens(decode.prompt_tokens());
  move.set_last_token(journal_.answered(attempt.group.first)[attempt.group.answered.size()]);
  move.set_target_endpoint(attempt.workers.decode.life.first);
  move.set_cache_salt(decode.cache_salt());
  move.set_kv_policy(decode.kv_policy());
  move.set_role_epoch(attempt.workers.prefill.role_epoch);
  move.set_incarnation(attempt.workers.prefill.life.second);
  attempt.moving_at = now;
  effects_.Move(number, attempt.workers, move);
}

void Session::OnMoved(int number, TimePoint now) {
  Attempt& attempt = *attempts_[number];
  const int from_number = *attempt.source;
  Attempt& from = *attempts_[from_number];
  attempt.moved_from = std::exchange(attempt.source, std::nullopt);
  attempt.committed = true;
  attempt.first_received = true;  // there is no prefill call to wait for
  from.mover.reset();
  owner_[attempt.group.first] = number;
  LogRequest(LogLevel::kInfo, tag(), "choice_moved",
             {{"choice", attempt.group.first},
              {"from", from.workers.decode.worker_id},
              {"to", attempt.workers.decode.worker_id}});
  timing_.OnMoved(attempt.workers.decode.worker_id, attempt.moving_at);
  CloseIdleAttempts();
  MoveNext(from_number, now);
}

void Session::FailMove(int number, const Failure& failure, TimePoint now) {
  Attempt& attempt = *attempts_[number];
  const int from_number = *attempt.source;
  Attempt& from = *attempts_[from_number];
  LogRequest(LogLevel::kInfo, tag(), "choice_move_failed",
             {{"choice", attempt.group.first},
              {"on", from.workers.decode.worker_id},
              {"error", Message(failure.status)}});
  if (failure.side == Side::kDecode) failures_[attempt.workers.decode.life] += 2;
  ++from.moves_failed;
  from.mover.reset();
  Close(number);
  CancelCalls(number);
  MoveNext(from_number, now);
}

// Ends the moves that involve a closed attempt: cancels a move in progress from it, and the Move
// calls that keep its choices paused.
void Session::CloseMovesOf(int number) {
  if (const std::optional<int> mover = std::exchange(attempts_[number]->mover, std::nullopt)) {
    Close(*mover);
    CancelCalls(*mover);
  }
  for (size_t i = 0; i < attempts_.size(); ++i) {
    if (attempts_[i]->moved_from != number || attempts_[i]->prefill_ended) continue;
    effects_.Cancel(static_cast<int>(i), Side::kPrefill);
  }
}

}  // namespace penstock
