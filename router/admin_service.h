#pragma once

#include <functional>
#include <memory>
#include <string>

#include "base/rpc/operator_gate.h"
#include "base/rpc/process_info.h"
#include "router/fleet/role_keeper.h"
#include "router/fleet/worker_table.h"
#include "router/scaling/scale_keeper.h"

namespace grpc {
class Service;
}

namespace penstock {

// The arguments of MakeAdminService.
struct AdminServiceArgs {
  ProcessInfo process;                   // this router
  WorkerTable& table;                    // outlives the service
  const OperatorGate& operators;         // decides who may change processes; outlives the service
  const RoleKeeper* roles = nullptr;     // outlives the service; nullptr: no role advice
  const ScaleKeeper* scaling = nullptr;  // outlives the service; nullptr: no autoscaling
  std::function<std::string()> picture;  // JSON of the cluster for operators; any thread
};

// Makes the gRPC service Admin. It needs a server of its own: calls block the server's threads. At
// most kAdminStreamsMax streams are open at once (RESOURCE_EXHAUSTED beyond). Calls to a worker use
// the router's channel, so the worker sees the router's certificate, and end with the operator's
// call.
inline constexpr int kAdminStreamsMax = 64;
std::unique_ptr<grpc::Service> MakeAdminService(AdminServiceArgs args);

}  // namespace penstock
