#pragma once

#include <functional>
#include <memory>

#include "base/process_info.h"
#include "base/status.h"

namespace grpc {
class Service;
}

namespace penstock {

// Serves WorkerAdmin. `set_draining` is called on gRPC's threads, and quick.
class WorkerAdmin {
 public:
  using SetDraining = std::function<absl::Status(bool draining)>;
  WorkerAdmin(ProcessInfo process, SetDraining set_draining);
  ~WorkerAdmin();
  grpc::Service* service();

 private:
  class Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace penstock
