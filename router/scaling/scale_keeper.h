#pragma once

#include <functional>

#include "base/mutex.h"
#include "proto/admin.pb.h"
#include "router/fleet/worker_table.h"
#include "router/scaling/load_meter.h"
#include "router/scaling/scale_decider.h"
#include "router/scaling/scale_metrics.h"
#include "router/scaling/scale_target.h"

namespace penstock {

// Measures the load of the roles, decides the numbers of workers, and publishes both in metrics,
// the log and Latest(). With Options::act it also has them carried out. Observe is for one thread;
// the rest for any.
class ScaleKeeper {
 public:
  struct Options {
    bool act = false;
    ScaleTargets targets;
    ScaleOptions scale;
    // Changes one worker's role; nullptr: never. `home`: a worker that has changed its role before.
    std::function<void(v1::WorkerState::Role to, bool home)> turn = nullptr;
  };
  // All outlive it. `target`: without Options::act it is not used, and may be nullptr.
  ScaleKeeper(WorkerTable& table, ScaleMetrics& metrics, ScaleTarget* target, Options options);

  // Call it about once a second.
  void Observe(TimePoint now);
  v1::ScaleAdvice Latest() const EXCLUDES(mutex_);

 private:
  ScaleDecision Decide(ScaleSituation situation, TimePoint now);
  void CarryOut(const ReplicaCounts& before, const ScaleDecision& decision);
  void Publish(const ScaleDecision& decision, bool leads) EXCLUDES(mutex_);

  WorkerTable& table_;
  const Options options_;
  ScaleMetrics& metrics_;
  DryRunTarget dry_run_;
  ScaleTarget& target_;
  LoadMeter meter_;  // this and the next: only Observe's thread
  ScaleDecider decider_;
  mutable Mutex mutex_;
  v1::ScaleAdvice latest_ GUARDED_BY(mutex_);
};

}  // namespace penstock
