#pragma once

#include <functional>
#include <memory>
#include <string>

#include "base/rpc/process_info.h"
#include "router/fleet/role_keeper.h"
#include "router/fleet/worker_table.h"

namespace grpc {
class Service;
}

namespace penstock {

struct AdminServiceArgs {
  ProcessInfo process;                   // this router
  WorkerTable& table;                    // outlives the service
  const RoleKeeper* roles = nullptr;     // likewise; null: no advice on them
  std::function<std::string()> picture;  // of the cluster, for operators: JSON. Any thread
};

// Serves Admin, for a server of its own: a call blocks a thread of that, and streams are bounded by
// kAdminStreamsMax (RESOURCE_EXHAUSTED beyond). What is asked of a worker goes to it over the
// router's channel and ends with the operator's call.
inline constexpr int kAdminStreamsMax = 64;
std::unique_ptr<grpc::Service> MakeAdminService(AdminServiceArgs args);

}  // namespace penstock
