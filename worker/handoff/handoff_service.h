#pragma once

#include <memory>

#include "kvstore/handoff/kv_receiver.h"

namespace grpc {
class Service;
}

namespace penstock {

// Serves HandoffTarget: carries messages between the receiver and the workers that bring KV.
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
