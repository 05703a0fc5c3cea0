#pragma once

#include <functional>
#include <memory>

#include "base/clock.h"
#include "base/rpc/operator_gate.h"
#include "base/rpc/process_info.h"
#include "base/status.h"
#include "proto/worker.pb.h"

namespace grpc {
class Service;
}

namespace penstock {

// Serves WorkerAdmin. The functions are called on gRPC's threads and must be quick.
class WorkerAdmin {
 public:
  using SetDraining = std::function<absl::Status(bool draining)>;
  // As RoleSwitch::Turn.
  using Turn = std::function<void(v1::WorkerState::Role to, Duration within,
                                  std::function<void(absl::StatusOr<uint32_t>)> done)>;
  // `operators` decides who may change the worker, and outlives the service.
  WorkerAdmin(ProcessInfo process, const OperatorGate& operators, SetDraining set_draining,
              Turn turn);
  ~WorkerAdmin();
  grpc::Service* service();

 private:
  class Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace penstock
