#include "router/fleet/role_advice.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <tuple>

#include "proto/names.h"

namespace penstock {
namespace {

constexpr v1::WorkerState::Role kPrefill = v1::WorkerState::PREFILL;
constexpr v1::WorkerState::Role kDecode = v1::WorkerState::DECODE;

double At(const RolePressure& pressure, size_t now, size_t workers) {
  return pressure.fixed +
         pressure.variable * static_cast<double>(now) / static_cast<double>(workers);
}

const RoleCandidate& QuickestToLeave(const RolePool& pool) {
  return *std::min_element(pool.workers.begin(), pool.workers.end(),
                           [](const RoleCandidate& a, const RoleCandidate& b) {
                             return std::tie(a.to_move, a.worker_id, a.endpoint) <
                                    std::tie(b.to_move, b.worker_id, b.endpoint);
                           });
}

std::string Reason(const RolePool& from, const RolePool& to, v1::WorkerState::Role role) {
  if (to.size() == 0) return fmt::format("no {} worker is ready", RoleName(role));
  const auto max = std::max_element(
      to.pressures.begin(), to.pressures.end(),
      [&](const RolePressure& a, const RolePressure& b) { return At(a, 1, 1) < At(b, 1, 1); });
  return fmt::format(
      "{} of the {} {} workers is at {:.0f} % of its target and would be at {:.0f} %; the others' "
      "load would go from {:.0f} to {:.0f} %",
      max == to.pressures.end() ? "the load" : max->what, to.size(), RoleName(role),
      100 * LoadOf(to), 100 * LoadOf(to, to.size() + 1), 100 * LoadOf(from),
      100 * LoadOf(from, from.size() - 1));
}

std::optional<RoleProposal> ProposeFor(v1::WorkerState::Role role, const RoleSituation& situation,
                                       const RolePolicy& policy, bool wanted_more) {
  const bool to_prefill = role == kPrefill;
  const RolePool& to = to_prefill ? situation.prefill : situation.decode;
  const RolePool& from = to_prefill ? situation.decode : situation.prefill;
  if (from.size() < 2) return std::nullopt;
  if (LoadOf(to) <= (wanted_more ? policy.still_much : policy.too_much)) return std::nullopt;
  const double spared = LoadOf(from, from.size() - 1);
  const double after = std::max(spared, LoadOf(to, to.size() + 1));
  const double gain = std::max(LoadOf(from), LoadOf(to)) - after;
  if (spared > policy.to_spare || gain < policy.gain_min) return std::nullopt;
  return RoleProposal{.worker = QuickestToLeave(from),
                      .from = to_prefill ? kDecode : kPrefill,
                      .to = role,
                      .gain = gain,
                      .why = Reason(from, to, role)};
}

// What presses is the same list each time, in the same order.
void SmoothInto(const RolePool& seen, double weight, RolePool& pool) {
  const bool same = pool.pressures.size() == seen.pressures.size() && pool.size() > 0;
  pool.workers = seen.workers;
  if (!same) {
    pool.pressures = seen.pressures;
    return;
  }
  for (size_t i = 0; i < seen.pressures.size(); ++i) {
    RolePressure& smoothed = pool.pressures[i];
    smoothed.fixed += weight * (seen.pressures[i].fixed - smoothed.fixed);
    smoothed.variable += weight * (seen.pressures[i].variable - smoothed.variable);
  }
}

}  // namespace

double LoadOf(const RolePool& pool, size_t workers) {
  if (workers == 0) return kLoadMax;
  double load = 0;
  for (const RolePressure& pressure : pool.pressures) {
    load = std::max(load, At(pressure, pool.size(), workers));
  }
  return std::min(load, kLoadMax);
}

std::optional<RoleProposal> ProposeRole(const RoleSituation& situation, const RolePolicy& policy,
                                        v1::WorkerState::Role wants_more) {
  for (const v1::WorkerState::Role role : {kPrefill, kDecode}) {
    if (auto proposal = ProposeFor(role, situation, policy, wants_more == role)) return proposal;
  }
  return std::nullopt;
}

const std::optional<RoleProposal>& RoleAdvisor::Observe(const RoleSituation& situation,
                                                        TimePoint now) {
  const bool changed = last_ && situation.changes != smoothed_.changes;
  Smooth(situation, now);
  if (changed || situation.turning) {
    rests_until_ = now + policy_.rest;
    // What the loads were then says little of what they are to be.
    smoothed_.prefill.pressures = situation.prefill.pressures;
    smoothed_.decode.pressures = situation.decode.pressures;
  }
  std::optional<RoleProposal> proposal;
  if (now >= rests_until_) proposal = ProposeRole(smoothed_, policy_, wants_more_);
  if (!proposal) {
    Quiet();
    return said_;
  }
  if (wants_more_ != proposal->to) {
    wants_more_ = proposal->to;
    since_ = now;
    said_.reset();
  }
  if (now - *since_ >= policy_.hold) said_ = std::move(proposal);
  return said_;
}

void RoleAdvisor::Smooth(const RoleSituation& situation, TimePoint now) {
  const double seconds = last_ ? Milliseconds(now - *last_) / 1e3 : 0;
  const double weight = 1 - std::exp(-seconds / (Milliseconds(policy_.smooth) / 1e3));
  SmoothInto(situation.prefill, weight, smoothed_.prefill);
  SmoothInto(situation.decode, weight, smoothed_.decode);
  smoothed_.turning = situation.turning;
  smoothed_.changes = situation.changes;
  last_ = now;
}

void RoleAdvisor::Quiet() {
  wants_more_ = v1::WorkerState::ROLE_UNSPECIFIED;
  since_.reset();
  said_.reset();
}

}  // namespace penstock
