#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "base/metrics/metrics.h"
#include "lab/world/client.h"
#include "lab/world/machine/process.h"
#include "router/inference/inference_core.h"

namespace penstock::world {

struct RouterPlace {
  int host = 0;
  uint32_t max_model_len = 0;  // tokens
  uint32_t requests_max = 2048;
  uint32_t queued_max = 1024;
  Duration queue_wait = std::chrono::seconds(2);
  bool peer_reads = true;
  PlacementRule rule = nullptr;
  // Called about once a second, in the router's process.
  std::function<void(WorkerTable& table, MetricsRegistry& metrics, TimePoint now)> on_poll =
      nullptr;
};

// The cluster's router: the fleet, admission and sessions of router/, without its public ports.
// Clients call its core. It can die and start again.
class SimRouter {
 public:
  explicit SimRouter(RouterPlace place);

  Process* process() const { return process_; }  // the latest
  void Start();
  void Crash();
  // True when it has a recent state of the worker at `endpoint`, which is ready in this role.
  bool Sees(const std::string& endpoint, v1::WorkerState::Role role) const;
  // True when another worker than this one is ready in its role.
  bool CanSpare(const std::string& endpoint) const;
  // The number of workers that it sees ready.
  size_t workers_ready() const;
  // The requests that it has reserved load for, on all workers.
  uint32_t reserved() const;
  // In the router's process. Nothing before the router is ready.
  void Send(RouterClient& client);
  void Cancel(RouterClient& client, const absl::Status& why);
  bool ready() const { return parts_ != nullptr && parts_->core->ready(); }

 private:
  struct Parts {
    SteadyClock clock;
    MetricsRegistry registry;
    ServedModel model;
    std::unique_ptr<RequestMetrics> metrics;
    std::unique_ptr<OpenRequests> open;
    std::unique_ptr<Fleet> fleet;
    std::unique_ptr<InferenceCore> core;
  };
  void Run();
  void Begin(RouterClient& client);
  std::vector<WorkerPicture> Pictures() const;

  const RouterPlace place_;
  Process* process_ = nullptr;
  Parts* parts_ = nullptr;  // never destroyed
};

}  // namespace penstock::world
