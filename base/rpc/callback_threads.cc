#include "base/rpc/callback_threads.h"

#include <grpcpp/generic/async_generic_service.h>
#include <grpcpp/grpcpp.h>

#include "base/check.h"

namespace penstock {

CallbackThreads::CallbackThreads() : nothing_(std::make_unique<grpc::CallbackGenericService>()) {
  grpc::ServerBuilder builder;
  builder.RegisterCallbackGenericService(nothing_.get());
  server_ = builder.BuildAndStart();
  PENSTOCK_CHECK(server_ != nullptr, "gRPC starts no server without a port");
}

CallbackThreads::~CallbackThreads() { server_->Shutdown(); }

}  // namespace penstock
