#pragma once

#include <functional>
#include <memory>

#include "proto/worker.pb.h"

namespace grpc {
class Service;
}

namespace penstock {

// Serves WorkerStatus.Watch: `state` at once, then whenever it has changed (looked at every 50 ms)
// and at least once a second. `state` is called on gRPC's threads and must be quick.
class StatusService {
 public:
  explicit StatusService(std::function<v1::WorkerState()> state);
  ~StatusService();
  grpc::Service* service();
  // Ends every watch: before the server shuts down.
  void Stop();

 private:
  class Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace penstock
