#pragma once

#include <memory>
#include <string>
#include <vector>

#include "base/metrics/metrics.h"
#include "router/inference/inference_core.h"
#include "tests/world/client.h"
#include "tests/world/machine/process.h"

namespace penstock::world {

// The cluster's router: the fleet, admission and sessions of router/, without its public ports.
// Clients call its core. It can die and start again.
class SimRouter {
 public:
  explicit SimRouter(int host);

  Process* process() const { return process_; }  // the latest
  void Start();
  void Crash();
  // True when it has a recent state of the worker at `endpoint`, which is ready in this role.
  bool Sees(const std::string& endpoint, v1::WorkerState::Role role) const;
  // True when another worker than this one is ready in its role.
  bool CanSpare(const std::string& endpoint) const;
  // The requests that it has reserved load for, on all workers.
  uint32_t reserved() const;
  // In the router's process. Nothing before the router is ready.
  void Send(SimClient& client);
  void Cancel(SimClient& client, const absl::Status& why);
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
  std::vector<WorkerPicture> Pictures() const;

  const int host_;
  Process* process_ = nullptr;
  Parts* parts_ = nullptr;  // never destroyed
};

}  // namespace penstock::world
