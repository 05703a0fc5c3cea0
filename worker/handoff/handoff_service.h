#pragma once

#include <memory>

#include "kvstore/handoff/kv_receiver.h"

namespace grpc {
class Service;
}

namespace penstock {

// This room (worker/handoff) connects KvSender and KvReceiver to other workers over gRPC: control
// streams of handoffs, reads of prefixes from peers' stores, and the metrics of both. It knows
// transfers of KV only. It does not know models, engines, roles or requests' text.
//
// Serves HandoffTarget: carries messages between the receiver and the workers that send KV.
class HandoffService {
 public:
  explicit HandoffService(KvReceiver& receiver);  // outlives the service
  ~HandoffService();
  grpc::Service* service();

 private:
  class Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace penstock
