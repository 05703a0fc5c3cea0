#include "base/rpc/callback_threads.h"

#include <grpcpp/generic/async_generic_service.h>
#include <grpcpp/grpcpp.h>

#include "base/check.h"

namespace penstock {
namespace {

// A server without a port. As long as it exists, gRPC keeps its callback threads.
const grpc::Server* StartEmptyServer() {
  auto nothing = std::make_unique<grpc::CallbackGenericService>();
  grpc::ServerBuilder builder;
  builder.RegisterCallbackGenericService(nothing.get());
  auto server = builder.BuildAndStart();
  PENSTOCK_CHECK(server != nullptr, "gRPC starts no server without a port");
  static_cast<void>(nothing.release());  // the server uses it
  return server.release();
}

}  // namespace

void KeepCallbackThreads() {
  [[maybe_unused]] static const grpc::Server* const kept = StartEmptyServer();
}

}  // namespace penstock
