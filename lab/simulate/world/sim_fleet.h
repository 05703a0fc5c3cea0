#pragma once

#include <chrono>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "lab/simulate/sim_options.h"
#include "lab/world/machine/scheduler.h"
#include "lab/world/worker.h"
#include "router/scaling/scale_target.h"

namespace penstock {

inline Duration SecondsOf(double seconds) {
  return std::chrono::duration_cast<Duration>(std::chrono::duration<double>(seconds));
}

// The workers of a simulated cluster, and their Deployments: a replica that is added serves after
// the time to start up, and one that is removed is told to drain, and ends when it is idle or the
// time for that is over. Kubernetes removes the newest replica first.
class SimFleet final : public ScaleTarget {
 public:
  using ConfigOf = std::function<v1::WorkerConfig(v1::WorkerState::Role role)>;

  SimFleet(world::Scheduler& scheduler, const SimScaling& scaling, ConfigOf config)
      : scheduler_(scheduler), scaling_(scaling), config_(std::move(config)) {}

  // Workers that are there from the begin of the run.
  void Begin(const ReplicaCounts& counts);
  // ScaleTarget: what a cluster manager would do.
  bool leads() override { return true; }
  std::optional<ReplicaCounts> Wanted() override { return wanted_; }
  void Want(const ReplicaCounts& counts) override;

  v1::WorkerState::Role RoleOf(int host) const;  // of the worker on a host
  size_t begun() const { return begun_; }
  // Fills those fields of the result that are about the fleet.
  void Describe(SimResult& result) const;
  double PeerBytes() const;  // that were read from workers, in all

 private:
  struct Replica {
    std::unique_ptr<world::SimWorker> worker;
    v1::WorkerState::Role role;
    TimePoint from;
    std::optional<TimePoint> removed;
    std::optional<TimePoint> until;  // its end
    double counted = 0;              // peer bytes, once it has ended
  };

  Replica& Add(v1::WorkerState::Role role);
  void Resize(v1::WorkerState::Role role, uint32_t from, uint32_t to);
  void Start(size_t number);
  void Remove(Replica& replica);
  void WatchDrain(size_t number);
  void End(Replica& replica);

  world::Scheduler& scheduler_;
  const SimScaling scaling_;
  const ConfigOf config_;
  std::vector<Replica> replicas_;  // by host
  ReplicaCounts wanted_;
  size_t begun_ = 0;
  int changes_ = 0;
  int turns_ = 0;
  int directions_[2] = {0, 0};  // the last change's, of prefill and of decode workers
};

}  // namespace penstock
