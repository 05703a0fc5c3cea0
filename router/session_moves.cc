// A session's choices leave a decode worker that drains.

#include <algorithm>

#include "base/check.h"
#include "base/log.h"
#include "router/session.h"

namespace penstock {
namespace {

// Of one leg. Then what is left stays until its worker ends it, and is computed again elsewhere.
constexpr int kMovesFailedMost = 3;

}  // namespace

void Session::OnLeaving(int number, TimePoint now) {
  Leg& leg = *legs_[number];
  if (finished_ || leg.state != Leg::State::kOpen || leg.leaving) return;
  leg.leaving = true;
  MoveNext(number, now);
  WakeForLegs(now);
}

// One choice at a time: what the first has brought over, the others find there.
void Session::MoveNext(int number, TimePoint now) {
  Leg& leg = *legs_[number];
  const bool may_move = leg.leaving && leg.state == Leg::State::kOpen && leg.committed &&
                        !leg.source && !leg.mover && leg.moves_failed < kMovesFailedMost;
  if (finished_ || !may_move) return;
  for (uint32_t choice = leg.group.first; choice < leg.group.first + leg.group.count; ++choice) {
    if (!Serves(number, choice) || journal_.answered(choice).empty()) continue;
    auto mover = std::make_unique<Leg>();
    mover->group = {.first = choice, .count = 1, .answered = {}};
    mover->session = effects_.Random();  // one epoch of one session is one attempt
    mover->plans_before = leg.plans_before;
    mover->retry_at = now + leg.moves_failed * limits_.first_backoff;
    mover->give_up_at = mover->retry_at + limits_.move_wait;
    mover->source = number;
    leg.mover = static_cast<int>(legs_.size());
    legs_.push_back(std::move(mover));
    return TryMove(*leg.mover, now);
  }
}

void Session::TryMove(int number, TimePoint now) {
  Leg& leg = *legs_[number];
  if (now < leg.retry_at) return;
  const Leg& source = *legs_[*leg.source];
  // What is known now; what the source says until it stands still is answered twice, and taken
  // once.
  leg.group.answered = journal_.answered(leg.group.first);
  leg.group.answered.pop_back();
  PlacementNeed need = NeedOf(leg, now);
  need.format = source.workers.format;
  need.ttft_limit_ms = 0;
  absl::StatusOr<PlacedPair> workers = effects_.PlaceTarget(number, need, failures_);
  if (!workers.ok()) {
    if (now >= leg.give_up_at) FailMove(number, {Side::kPrefill, workers.status()}, now);
    return;
  }
  const PlacedWorker& from = source.workers.decode;
  workers->prefill = {.life = from.life,
                      .role_epoch = from.role_epoch,
                      .worker_id = from.worker_id,
                      .channel = from.channel,
                      .sessions = from.sessions,
                      .booking = {}};
  leg.state = Leg::State::kOpen;
  leg.opened = true;
  leg.workers = *std::move(workers);
  leg.to_admit = DecodeRequestOf(leg);
  leg.to_admit->set_role_epoch(leg.workers.decode.role_epoch);
  effects_.OpenTarget(number, leg.workers, *leg.to_admit);
}

// Only now, so that no choice stands still while its target waits for room.
void Session::OnTargetAdmitted(int number, TimePoint now) {
  Leg& leg = *legs_[number];
  if (!leg.to_admit) return;
  const v1::DecodeRequest decode = *std::exchange(leg.to_admit, std::nullopt);
  v1::MoveRequest move;
  *move.mutable_key() = leg.key;
  *move.mutable_source() = legs_[*leg.source]->key;
  move.set_request_id(request_.request_id);
  move.set_choice(leg.group.first);
  *move.mutable_tokens() = decode.tokens();
  move.set_prompt_tokens(decode.prompt_tokens());
  move.set_last_token(journal_.answered(leg.group.first)[leg.group.answered.size()]);
  move.set_target_endpoint(leg.workers.decode.life.first);
  move.set_cache_salt(decode.cache_salt());
  move.set_kv_policy(decode.kv_policy());
  move.set_role_epoch(leg.workers.prefill.role_epoch);
  leg.moving_at = now;
  effects_.Move(number, leg.workers, move);
}

void Session::OnMoved(int number, TimePoint now) {
  Leg& leg = *legs_[number];
  const int from_number = *leg.source;
  Leg& from = *legs_[from_number];
  leg.moved_from = std::exchange(leg.source, std::nullopt);
  leg.committed = true;
  leg.first_received = true;  // nothing is missing but what the target says
  from.mover.reset();
  owner_[leg.group.first] = number;
  LogRequest(LogLevel::kInfo, tag(), "choice_moved",
             {{"choice", leg.group.first},
              {"from", from.workers.decode.worker_id},
              {"to", leg.workers.decode.worker_id}});
  timing_.OnMoved(leg.workers.decode.worker_id, leg.moving_at);
  CloseServed();
  MoveNext(from_number, now);
}

void Session::FailMove(int number, const Failure& failure, TimePoint now) {
  Leg& leg = *legs_[number];
  const int from_number = *leg.source;
  Leg& from = *legs_[from_number];
  LogRequest(LogLevel::kInfo, tag(), "choice_stays",
             {{"choice", leg.group.first},
              {"on", from.workers.decode.worker_id},
              {"error", Message(failure.status)}});
  if (failure.side == Side::kDecode) failures_[leg.workers.decode.life] += 2;
  ++from.moves_failed;
  from.mover.reset();
  Close(number);
  CancelCalls(number);
  MoveNext(from_number, now);
}

// The leg has closed: nobody takes from it any more, and what was held still there may go.
void Session::CloseMovesOf(int number) {
  if (const std::optional<int> mover = std::exchange(legs_[number]->mover, std::nullopt)) {
    Close(*mover);
    CancelCalls(*mover);
  }
  for (size_t i = 0; i < legs_.size(); ++i) {
    if (legs_[i]->moved_from != number || legs_[i]->prefill_ended) continue;
    effects_.Cancel(static_cast<int>(i), Side::kPrefill);
  }
}

}  // namespace penstock
