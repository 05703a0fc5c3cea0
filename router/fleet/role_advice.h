#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "base/clock.h"
#include "proto/worker.pb.h"

namespace penstock {

// What presses on the workers of a role, as a share of what its target allows: 1 is just enough.
struct RolePressure {
  std::string what;     // "the queue", ... for people
  double fixed = 0;     // however many workers there are
  double variable = 0;  // is shared: twice the workers, half of it each
};

// A worker of a role that could turn.
struct RoleCandidate {
  std::string endpoint;
  std::string worker_id;
  double to_move = 0;  // what it has: the least is the quickest to drain
};

// The ready workers of one role.
struct RolePool {
  std::vector<RoleCandidate> workers;
  std::vector<RolePressure> pressures;

  size_t size() const { return workers.size(); }
};

// Both roles, as one router sees them now.
struct RoleSituation {
  RolePool prefill;
  RolePool decode;
  bool turning = false;  // some worker is changing its role
  uint64_t changes = 0;  // of roles, that the workers tell of; it changes when one has turned
};

// The most that presses on `pool` if it had so many workers; kLoadMax where it had none.
inline constexpr double kLoadMax = 100;
double LoadOf(const RolePool& pool, size_t workers);
inline double LoadOf(const RolePool& pool) { return LoadOf(pool, pool.size()); }

struct RolePolicy {
  double too_much = 1;      // a role whose load is above it wants another worker
  double still_much = 0.8;  // once it does, it wants one until its load is below this
  double to_spare = 0.7;    // the other role has one to give if its load stays below this
  double gain_min = 0.1;    // that the worse load must fall by
  Duration hold = std::chrono::seconds(20);    // a situation must last so long to be spoken of
  Duration rest = std::chrono::seconds(120);   // from one change to the next
  Duration smooth = std::chrono::seconds(10);  // of loads: a burst is no reason
};

struct RoleProposal {
  RoleCandidate worker;
  v1::WorkerState::Role from = v1::WorkerState::ROLE_UNSPECIFIED;
  v1::WorkerState::Role to = v1::WorkerState::ROLE_UNSPECIFIED;
  double gain = 0;  // the worse of both loads falls by this
  std::string why;
};

// The worker that should change its role now, if the other role can do without it; never the last
// one of its role. `wants_more`: the role that was found short before, whose bar is lower. Pure.
std::optional<RoleProposal> ProposeRole(
    const RoleSituation& situation, const RolePolicy& policy,
    v1::WorkerState::Role wants_more = v1::WorkerState::ROLE_UNSPECIFIED);

// Proposals over time: of smoothed loads, after they have lasted, and with rest between changes.
// No clock and no I/O; one thread.
class RoleAdvisor {
 public:
  explicit RoleAdvisor(RolePolicy policy = {}) : policy_(policy) {}

  // What to say from now on, until the next call. `now` does not go back.
  const std::optional<RoleProposal>& Observe(const RoleSituation& situation, TimePoint now);
  double prefill_load() const { return LoadOf(smoothed_.prefill); }
  double decode_load() const { return LoadOf(smoothed_.decode); }

 private:
  void Smooth(const RoleSituation& situation, TimePoint now);
  void Quiet();

  const RolePolicy policy_;
  RoleSituation smoothed_;
  std::optional<TimePoint> last_;
  std::optional<TimePoint> since_;  // when the role in `wants_more_` was first found short
  v1::WorkerState::Role wants_more_ = v1::WorkerState::ROLE_UNSPECIFIED;
  TimePoint rests_until_{};
  std::optional<RoleProposal> said_;
};

}  // namespace penstock
