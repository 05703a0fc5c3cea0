#pragma once

#include <memory>
#include <vector>

#include "lab/simulate/sim_options.h"
#include "lab/simulate/sim_policy.h"
#include "lab/simulate/world/keda_rule.h"
#include "lab/simulate/world/sim_fleet.h"
#include "lab/simulate/world/timed_runner.h"
#include "lab/simulate/world/trace_client.h"
#include "lab/world/machine/network.h"
#include "lab/world/machine/scheduler.h"
#include "lab/world/model_host.h"
#include "lab/world/router.h"
#include "router/scaling/scale_keeper.h"

// Room lab/simulate/world: a trace on a cluster of the real router and workers on the simulated
// machine of lab/world, with the times of a described model. It becomes the program
// penstock-lab-world, which `penstock simulate` runs for each of its runs, because the machine
// takes the place of the clock and the threads of its whole process.
namespace penstock {

// One run. One for each process.
class TraceWorld {
 public:
  TraceWorld(const SimTrace& trace, const SimOptions& options);
  // UNAVAILABLE: the cluster was never ready. INTERNAL: requests are stuck.
  absl::StatusOr<SimResult> Run();

 private:
  bool with_decode() const { return options_.decode_workers > 0; }
  v1::WorkerConfig WorkerConfigOf(v1::WorkerState::Role role) const;
  world::SimModel OpenModel();
  world::RouterPlace RouterPlaceOf();
  std::unique_ptr<ScaleKeeper> MakeKeeper(WorkerTable& table);
  void Scale(WorkerTable& table, MetricsRegistry& metrics, TimePoint now);
  absl::StatusOr<Placement> Place(const PlacementInput& input, std::span<const BlockId> prompt);
  void Arrive(size_t request);
  double Speed() const;
  uint32_t AnswerTokens(const SimRequest& request) const;
  SimResult Result() const;
  void AddTimes(SimResult& result) const;
  void AddCaches(SimResult& result) const;
  void AddUse(SimResult& result) const;

  const SimTrace& trace_;
  const SimOptions options_;
  const double speed_;
  world::Scheduler scheduler_;
  world::Network network_;
  const std::unique_ptr<SimPolicy> policy_;  // null: penstock::Place
  std::vector<const TimedRunner*> runners_;  // of prefill workers
  std::vector<const TimedRunner*> decode_runners_;
  SimFleet fleet_;
  KedaRule keda_;
  std::unique_ptr<ScaleMetrics> scale_metrics_;
  std::unique_ptr<ScaleKeeper> keeper_;  // null: another scaler, or none
  std::unique_ptr<world::SimRouter> router_;
  std::vector<std::unique_ptr<TraceClient>> clients_;  // by request
  bool began_ = false;                                 // requests arrive
  size_t ended_ = 0;
};

}  // namespace penstock
