#pragma once

#include <memory>
#include <string>

#include "base/clock.h"
#include "base/status.h"
#include "proto/config.pb.h"
#include "worker/runtime/worker_runtime.h"

namespace penstock {

// This room (worker/main) makes a worker process out of its configuration: both programs,
// penstock-prefill and penstock-decode, are this class with another first role. It is the only room
// that knows both roles, and the only one that reads v1::WorkerConfig. It decides nothing else.
class Worker {
 public:
  // Loads the model, opens the wire, makes both roles and serves in `first`. Errors name field,
  // file or address.
  static absl::StatusOr<std::unique_ptr<Worker>> Start(v1::WorkerState::Role first,
                                                       const v1::WorkerConfig& config);

  const std::string& endpoint() const { return runtime_->endpoint(); }
  // As WorkerRuntime::Stop.
  void Stop(Duration grace) { runtime_->Stop(grace); }

 private:
  explicit Worker(std::unique_ptr<WorkerRuntime> runtime) : runtime_(std::move(runtime)) {}

  std::unique_ptr<WorkerRuntime> runtime_;
};

}  // namespace penstock
