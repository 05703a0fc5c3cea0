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

double At(const RoleLoad& load, size_t now, size_t workers) {
  return load.fixed + load.variable * static_cast<double>(now) / static_cast<double>(workers);
}

const RoleCandidate& CheapestToDrain(const RolePool& pool) {
  return *std::min_element(pool.workers.begin(), pool.workers.end(),
                           [](const RoleCandidate& a, const RoleCandidate& b) {
                             return std::tie(a.drain_cost, a.worker_id, a.endpoint) <
                                    std::tie(b.drain_cost, b.worker_id, b.endpoint);
                           });
}

std::string Reason(const RolePool& from, const RolePool& to, v1::WorkerState::Role role) {
  if (to.size() == 0) return fmt::format("no {} worker is ready", RoleName(role));
  const auto max = std::max_element(
      to.loads.begin(), to.loads.end(),
      [&](const RoleLoad& a, const RoleLoad& b) { return At(a, 1, 1) < At(b, 1, 1); });
  return fmt::format(
      "{} of the {} {} workers is at {:.0f} % of its target and would be at {:.0f} %; the others' "
      "load would go from {:.0f} to {:.0f} %",
      max == to.loads.end() ? "the load" : max->what, to.size(), RoleName(role), 100 * LoadOf(to),
      100 * LoadOf(to, to.size() + 1), 100 * LoadOf(from), 100 * LoadOf(from, from.size() - 1));
}

// Predicts the load of each role with one worker more or less: the fixed part stays, the variable
// part is divided by the number of workers. Proposes a change when `role` is overloaded, the other
// role stays below donor_load_max without a worker, and the higher of both loads falls by gain_min.
// docs/adr/0019 has the reasons.
std::optional<RoleProposal> ProposeFor(v1::WorkerState::Role role, const RoleSituation& situation,
                                       const RolePolicy& policy, bool was_short) {
  const bool to_prefill = role == kPrefill;
  const RolePool& to = to_prefill ? situation.prefill : situation.decode;
  const RolePool& from = to_prefill ? situation.decode : situation.prefill;
  if (from.size() < 2) return std::nullopt;
  if (LoadOf(to) <= (was_short ? policy.overload_until : policy.overload_above))
    return std::nullopt;
  const double donor_load = LoadOf(from, from.size() - 1);
  const double after = std::max(donor_load, LoadOf(to, to.size() + 1));
  const double gain = std::max(LoadOf(from), LoadOf(to)) - after;
  if (donor_load > policy.donor_load_max || gain < policy.gain_min) return std::nullopt;
  return RoleProposal{.worker = CheapestToDrain(from),
                      .from = to_prefill ? kDecode : kPrefill,
                      .to = role,
                      .gain = gain,
                      .why = Reason(from, to, role)};
}

// Exponential moving average. The loads are the same kinds in the same order each time.
void SmoothInto(const RolePool& seen, double weight, RolePool& pool) {
  const bool same = pool.loads.size() == seen.loads.size() && pool.size() > 0;
  pool.workers = seen.workers;
  if (!same) {
    pool.loads = seen.loads;
    return;
  }
  for (size_t i = 0; i < seen.loads.size(); ++i) {
    RoleLoad& smoothed = pool.loads[i];
    smoothed.fixed += weight * (seen.loads[i].fixed - smoothed.fixed);
    smoothed.variable += weight * (seen.loads[i].variable - smoothed.variable);
  }
}

}  // namespace

double LoadOf(const RolePool& pool, size_t workers) {
  if (workers == 0) return kLoadMax;
  double load = 0;
  for (const RoleLoad& part : pool.loads) {
    load = std::max(load, At(part, pool.size(), workers));
  }
  return std::min(load, kLoadMax);
}

std::optional<RoleProposal> ProposeRole(const RoleSituation& situation, const RolePolicy& policy,
                                        v1::WorkerState::Role short_role) {
  for (const v1::WorkerState::Role role : {kPrefill, kDecode}) {
    if (auto proposal = ProposeFor(role, situation, policy, short_role == role)) return proposal;
  }
  return std::nullopt;
}

const std::optional<RoleProposal>& RoleAdvisor::Observe(const RoleSituation& situation,
                                                        TimePoint now) {
  const bool changed = last_ && situation.changes != smoothed_.changes;
  Smooth(situation, now);
  if (changed || situation.turning) {
    cooldown_until_ = now + policy_.cooldown;
    // The loads during a role change do not predict those after it: restart the average.
    smoothed_.prefill.loads = situation.prefill.loads;
    smoothed_.decode.loads = situation.decode.loads;
  }
  std::optional<RoleProposal> proposal;
  if (now >= cooldown_until_) proposal = ProposeRole(smoothed_, policy_, short_role_);
  if (!proposal) {
    Reset();
    return proposal_;
  }
  if (short_role_ != proposal->to) {
    short_role_ = proposal->to;
    since_ = now;
    proposal_.reset();
  }
  if (now - *since_ >= policy_.confirm_for) proposal_ = std::move(proposal);
  return proposal_;
}

void RoleAdvisor::Smooth(const RoleSituation& situation, TimePoint now) {
  const double seconds = last_ ? Milliseconds(now - *last_) / 1e3 : 0;
  const double weight = 1 - std::exp(-seconds / (Milliseconds(policy_.smoothing) / 1e3));
  SmoothInto(situation.prefill, weight, smoothed_.prefill);
  SmoothInto(situation.decode, weight, smoothed_.decode);
  smoothed_.turning = situation.turning;
  smoothed_.changes = situation.changes;
  last_ = now;
}

void RoleAdvisor::Reset() {
  short_role_ = v1::WorkerState::ROLE_UNSPECIFIED;
  since_.reset();
  proposal_.reset();
}

}  // namespace penstock
