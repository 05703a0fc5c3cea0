#include "router/scaling/scale_decider.h"

#include <fmt/format.h>

#include <algorithm>

namespace penstock {

ScaleOptions SpedUp(ScaleOptions options, uint32_t factor) {
  ScalePolicy& policy = options.policy;
  for (Duration* time : {&policy.smoothing, &policy.trend, &policy.confirm_up, &policy.hold_down,
                         &policy.between_downs, &policy.settle, &options.turn_cooldown}) {
    *time /= factor;
  }
  return options;
}

uint32_t ScaleDecider::Side::supply() const {
  const uint32_t away = std::min(other.visitors, fleet.replicas);
  return fleet.replicas - away + fleet.visitors;
}

ScaleDecider::Side ScaleDecider::PrefillOf(const ScaleSituation& situation,
                                           ScaleDecision& decision) {
  return {prefill_, situation.prefill, situation.decode, options_.prefill, decision.prefill};
}

ScaleDecider::Side ScaleDecider::DecodeOf(const ScaleSituation& situation,
                                          ScaleDecision& decision) {
  return {decode_, situation.decode, situation.prefill, options_.decode, decision.decode};
}

ScaleDecision ScaleDecider::Follow(const ScaleSituation& situation, TimePoint now) {
  ScaleDecision decision;
  Measure(PrefillOf(situation, decision), now);
  Measure(DecodeOf(situation, decision), now);
  return decision;
}

ScaleDecision ScaleDecider::Observe(const ScaleSituation& situation, TimePoint now) {
  ScaleDecision decision = Follow(situation, now);
  const Side prefill = PrefillOf(situation, decision), decode = DecodeOf(situation, decision);
  if (situation.turning) next_change_ = now + options_.turn_cooldown;
  if (now < next_change_) {
    for (const Side* side : {&prefill, &decode}) {
      side->decision.reason = ScaleReason::kTurning;
      side->decision.why = "a worker has just changed its role: the load afterwards is unknown";
    }
    return decision;
  }
  const Donor to_prefill = DonorFor(prefill, decode, now),
              to_decode = DonorFor(decode, prefill, now);
  if (to_prefill == Donor::kNow) {
    Turn(prefill, decode, now);
    decision.turn = RoleTurn::kToPrefill;
  } else if (to_decode == Donor::kNow) {
    Turn(decode, prefill, now);
    decision.turn = RoleTurn::kToDecode;
  } else if (SendHome(prefill, now)) {
    decision.turn = RoleTurn::kToDecode;
    decision.home = true;
  } else if (SendHome(decode, now)) {
    decision.turn = RoleTurn::kToPrefill;
    decision.home = true;
  } else {
    if (to_prefill == Donor::kNone) Resize(prefill, now);
    if (to_decode == Donor::kNone) Resize(decode, now);
  }
  return decision;
}

void ScaleDecider::Measure(const Side& side, TimePoint now) {
  if (side.fleet.known) {
    side.scaler.Observe(side.fleet.load, side.supply(), now);
  } else {
    side.scaler.Forget();
  }
  side.decision = {.replicas = side.fleet.replicas,
                   .needed = side.scaler.needed(),
                   .work = side.fleet.known ? side.scaler.work() : 0,
                   .reason = side.fleet.known ? ScaleReason::kEnough : ScaleReason::kUnknown,
                   .why = side.scaler.Reason()};
}

ScaleDecider::Donor ScaleDecider::DonorFor(const Side& to, const Side& from, TimePoint now) const {
  if (!options_.may_turn || to.scaler.missing(now) == 0 || from.supply() < 2) return Donor::kNone;
  if (from.scaler.can_lend(now)) return Donor::kNow;
  return from.scaler.may_lend_soon(now) ? Donor::kSoon : Donor::kNone;
}

void ScaleDecider::Turn(const Side& to, const Side& from, TimePoint now) {
  to.decision.reason = ScaleReason::kShort;
  from.decision.reason = ScaleReason::kSpare;
  to.decision.why += "; a worker that the other role can spare changes its role";
  from.decision.why += "; a worker that is spare changes its role";
  to.scaler.OnAdded(now);
  from.scaler.OnRemoved(now);
  next_change_ = now + options_.turn_cooldown;
}

bool ScaleDecider::SendHome(const Side& from, TimePoint now) {
  if (!options_.may_turn || from.fleet.visitors == 0 || !from.scaler.spare(now) ||
      from.supply() < 2) {
    return false;
  }
  from.decision.reason = ScaleReason::kSpare;
  from.decision.why += "; a worker of the other role's replicas returns to its role";
  from.scaler.OnRemoved(now);
  next_change_ = now + options_.turn_cooldown;
  return true;
}

// Up to all that is missing at once; down by one.
void ScaleDecider::Resize(const Side& side, TimePoint now) {
  const uint32_t before = side.fleet.replicas, missing = side.scaler.missing(now);
  const bool spare = missing == 0 && side.scaler.spare(now) && side.supply() > 1;
  const bool visitor = side.fleet.visitors > 0;
  if (missing > 0) side.decision.reason = ScaleReason::kShort;
  if (spare) side.decision.reason = ScaleReason::kSpare;
  if (spare && visitor) side.decision.why += "; a worker that came to this role must return first";
  // The bounds hold whatever the load is, and at once: an operator has set them.
  const uint32_t wanted = before + missing - (spare && !visitor && before > 0 ? 1 : 0);
  const ScaleBounds& bounds = side.bounds;
  const uint32_t after = std::clamp(wanted, bounds.min, std::max(bounds.min, bounds.max));
  if (after < wanted) {
    side.decision.reason = ScaleReason::kLimited;
    side.decision.why += fmt::format("; the limit is {}", bounds.max);
  }
  if (after > wanted) side.decision.why += fmt::format("; the minimum is {}", bounds.min);
  if (after > before) side.scaler.OnAdded(now);
  if (after < before) side.scaler.OnRemoved(now);
  side.decision.replicas = after;
}

}  // namespace penstock
