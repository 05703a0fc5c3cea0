#pragma once

#include <map>
#include <memory>
#include <string>

#include "base/metrics/metrics.h"
#include "base/mutex.h"
#include "proto/admin.pb.h"
#include "router/fleet/role_advice.h"
#include "router/fleet/worker_table.h"

namespace penstock {

// Observes the load of each role and publishes the advice on which worker should change its role,
// in metrics, the log and Latest(). With Options::act it also changes that worker's role. Observe
// is for one thread; the rest for any.
class RoleKeeper {
 public:
  struct Options {
    bool act = false;
    RoleTargets targets;
    RolePolicy policy;
  };
  // `table` and `metrics` outlive it.
  RoleKeeper(WorkerTable& table, MetricsRegistry& metrics, Options options);
  ~RoleKeeper();  // Cancels its own call to a worker; the worker completes its role change.

  // Call it about once a second.
  void Observe(TimePoint now);
  v1::RoleAdvice Latest() const EXCLUDES(mutex_);
  // Changes the role of the ready worker of the other role that drains fastest, as autoscaling has
  // decided. `home`: of those that have changed their role before. Nothing when there is none, or
  // a change is under way.
  void Turn(v1::WorkerState::Role to, bool home) EXCLUDES(mutex_);

 private:
  struct Metrics;
  struct RoleChange;

  void Publish(const std::optional<RoleProposal>& proposal) EXCLUDES(mutex_);
  void ChangeRole(const RoleProposal& proposal) EXCLUDES(mutex_);
  void OnRoleChanged(const RoleProposal& proposal, const absl::Status& status) EXCLUDES(mutex_);

  WorkerTable& table_;
  const Options options_;
  const std::unique_ptr<Metrics> metrics_;
  RoleAdvisor advisor_;  // this and the next: only Observe's thread
  TimePoint next_action_at_{};
  mutable Mutex mutex_;
  CondVar ended_;
  v1::RoleAdvice latest_ GUARDED_BY(mutex_);
  std::unique_ptr<RoleChange> role_change_
      GUARDED_BY(mutex_);  // the open call to a worker; nullptr: none
};

}  // namespace penstock
