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
// Clients call its core.
class SimRouter {
 public:
  explicit SimRouter(int host);

  Process* process() const { return process_; }
  void Start();
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

  Process* const process_;
  Parts* parts_ = nullptr;  // never destroyed
};

}  // namespace penstock::world
