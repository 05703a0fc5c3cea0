#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "base/clock.h"
#include "proto/worker.pb.h"

namespace penstock {

// One kind of load on the workers of a role, relative to its target: 1 means at SLO capacity.
struct RoleLoad {
  std::string what;     // e.g. "the queue", for people
  double fixed = 0;     // the part that does not depend on the number of workers
  double variable = 0;  // the part that is divided among the workers
};

// A worker that could change its role.
struct RoleCandidate {
  std::string endpoint;
  std::string worker_id;
  double drain_cost = 0;  // KV blocks in use: the worker with the least drains fastest
  bool visitor = false;   // it started in the other role
};

// The ready workers of one role.
struct RolePool {
  std::vector<RoleCandidate> workers;
  std::vector<RoleLoad> loads;

  size_t size() const { return workers.size(); }
};

// The state of both roles as one router sees it.
struct RoleSituation {
  RolePool prefill;
  RolePool decode;
  bool turning = false;  // a worker is changing its role
  uint64_t changes = 0;  // sum of the workers' role epochs: it changes with every role change
};

// The highest load of `pool` if it had `workers` workers; kLoadMax for none.
inline constexpr double kLoadMax = 100;
double LoadOf(const RolePool& pool, size_t workers);
inline double LoadOf(const RolePool& pool) { return LoadOf(pool, pool.size()); }

struct RolePolicy {
  // Hysteresis: a role is short of workers from a load above the first until it is below the
  // second.
  double overload_above = 1;
  double overload_until = 0.8;
  double donor_load_max = 0.7;  // limit of the other role's load after it has given a worker
  double gain_min = 0.1;        // the least reduction of the higher of both loads
  Duration confirm_for = std::chrono::seconds(20);  // a shortage must last this long
  Duration cooldown = std::chrono::seconds(120);    // the least time between two role changes
  Duration smoothing = std::chrono::seconds(10);    // time constant of the moving average of loads
};

struct RoleProposal {
  RoleCandidate worker;
  v1::WorkerState::Role from = v1::WorkerState::ROLE_UNSPECIFIED;
  v1::WorkerState::Role to = v1::WorkerState::ROLE_UNSPECIFIED;
  double gain = 0;  // predicted reduction of the higher of both loads
  std::string why;
};

// Proposes a worker that should change its role now; nullopt when none should. Never the last one
// of its role. `short_role`: the role that was short of workers before (hysteresis). Pure.
std::optional<RoleProposal> ProposeRole(
    const RoleSituation& situation, const RolePolicy& policy,
    v1::WorkerState::Role short_role = v1::WorkerState::ROLE_UNSPECIFIED);

// Makes proposals over time: from smoothed loads, after a shortage has lasted, and with a cooldown
// after role changes, so that roles do not oscillate. No clock and no I/O; one thread.
class RoleAdvisor {
 public:
  explicit RoleAdvisor(RolePolicy policy = {}) : policy_(policy) {}

  // The proposal that holds until the next call. `now` must not decrease.
  const std::optional<RoleProposal>& Observe(const RoleSituation& situation, TimePoint now);
  double prefill_load() const { return LoadOf(smoothed_.prefill); }
  double decode_load() const { return LoadOf(smoothed_.decode); }

 private:
  void Smooth(const RoleSituation& situation, TimePoint now);
  void Reset();

  const RolePolicy policy_;
  RoleSituation smoothed_;
  std::optional<TimePoint> last_;
  std::optional<TimePoint> since_;  // when short_role_ became short
  v1::WorkerState::Role short_role_ = v1::WorkerState::ROLE_UNSPECIFIED;
  TimePoint cooldown_until_{};
  std::optional<RoleProposal> proposal_;
};

}  // namespace penstock
