#pragma once

#include <grpcpp/grpcpp.h>

#include <string>
#include <utility>

#include "lab/world/machine/process.h"

namespace penstock::world {

// A channel of the simulated network: who calls whom. Stubs only pass it on.
class RpcChannel final : public grpc::ChannelInterface {
 public:
  RpcChannel(Process* from, std::string to) : owner(from), target(std::move(to)) {}

  grpc_connectivity_state GetState(bool) override { return GRPC_CHANNEL_READY; }

  Process* const owner;
  const std::string target;

 private:
  grpc::internal::Call CreateCall(const grpc::internal::RpcMethod&, grpc::ClientContext*,
                                  grpc::CompletionQueue*) override {
    return {};
  }
  void PerformOpsOnCall(grpc::internal::CallOpSetInterface*, grpc::internal::Call*) override {}
  void* RegisterMethod(const char*) override { return nullptr; }
  void NotifyOnStateChangeImpl(grpc_connectivity_state, gpr_timespec, grpc::CompletionQueue*,
                               void*) override {}
  bool WaitForStateChangeImpl(grpc_connectivity_state, gpr_timespec) override { return true; }
};

}  // namespace penstock::world
