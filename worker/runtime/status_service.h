#pragma once

#include <functional>
#include <memory>

#include "kvstore/manager/block_events.h"
#include "proto/worker.pb.h"

namespace grpc {
class Service;
}

namespace penstock {

// Serves WorkerStatus. Watch sends `state` at once, then when it has changed (checked every 50 ms)
// and at least once a second. WatchBlocks sends the events of `subscribe`, checked every 20 ms.
// Both functions are called on gRPC's threads and must be quick.
class StatusService {
 public:
  using Subscribe = std::function<std::shared_ptr<BlockSubscriber>()>;
  StatusService(std::function<v1::WorkerState()> state, Subscribe subscribe);
  ~StatusService();
  grpc::Service* service();
  // Ends every watch. Call it before the server shuts down.
  void Stop();

 private:
  class Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace penstock
