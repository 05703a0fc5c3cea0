#pragma once

#include <memory>

#include "base/status.h"
#include "proto/config.pb.h"
#include "worker/runtime/worker_runtime.h"

namespace penstock {

// This room (worker/main) makes a worker process out of its configuration: both programs,
// penstock-prefill and penstock-decode, call this function with another first role. It is the only
// room that knows both roles, and the only one that reads v1::WorkerConfig. It decides nothing
// else.

// Loads the model, opens the wire, makes both roles and serves in `first`. Errors name field, file
// or address.
absl::StatusOr<std::unique_ptr<WorkerRuntime>> StartWorker(v1::WorkerState::Role first,
                                                           const v1::WorkerConfig& config);

}  // namespace penstock
