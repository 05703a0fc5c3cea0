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

// Watches how the workers of each role are doing, says which one should turn, and where it is told
// to act, turns it. Observe on one thread; the rest on any.
class RoleKeeper {
 public:
  struct Options {
    bool act = false;
    RoleTargets targets;
    RolePolicy policy;
  };
  // `table` and `metrics` outlive it.
  RoleKeeper(WorkerTable& table, MetricsRegistry& metrics, Options options);
  ~RoleKeeper();  // Gives up waiting for a worker that turns; it goes on turning.

  // About once a second.
  void Observe(TimePoint now);
  v1::RoleAdvice Latest() const EXCLUDES(mutex_);

 private:
  struct Metrics;
  struct Turn;

  void Say(const std::optional<RoleProposal>& proposal) EXCLUDES(mutex_);
  void Act(const RoleProposal& proposal) EXCLUDES(mutex_);
  void OnTurned(const RoleProposal& proposal, const absl::Status& status) EXCLUDES(mutex_);

  WorkerTable& table_;
  const Options options_;
  const std::unique_ptr<Metrics> metrics_;
  RoleAdvisor advisor_;  // Observe's thread, as the next
  TimePoint acts_again_at_{};
  mutable Mutex mutex_;
  CondVar ended_;
  v1::RoleAdvice latest_ GUARDED_BY(mutex_);
  std::unique_ptr<Turn> turn_ GUARDED_BY(mutex_);  // that a worker was told and has not answered
};

}  // namespace penstock
