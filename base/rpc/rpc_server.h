#pragma once

#include <grpcpp/support/status.h>

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "base/clock.h"
#include "base/status.h"
#include "base/tls/tls_identity.h"

namespace grpc {
class Server;
class ServerCredentials;
class Service;
}  // namespace grpc

namespace penstock {

// The codes of absl and gRPC are the same numbers.
grpc::Status ToGrpcStatus(const absl::Status& status);
absl::Status FromGrpcStatus(const grpc::Status& status);

struct RpcServerOptions {
  std::string listen;                          // host:port; port 0 takes a free one
  std::vector<grpc::Service*> services;        // outlive the server
  std::shared_ptr<TlsIdentity> tls = nullptr;  // shared with channels; null: plain
};

// A gRPC server with health, for those inside a cluster. Any thread.
class RpcServer {
 public:
  // RESOURCE_EXHAUSTED (exit code: OS error) when the address cannot be bound.
  static absl::StatusOr<std::unique_ptr<RpcServer>> Start(const RpcServerOptions& options);
  ~RpcServer();

  // host:port with the port that was really bound.
  const std::string& endpoint() const { return endpoint_; }
  // What grpc.health.v1 answers for `service` ("" is the whole server). NOT_SERVING at start.
  void SetServing(const std::string& service, bool serving);
  // No new calls; open ones have `grace` to end and are cancelled then.
  void Stop(Duration grace);

 private:
  explicit RpcServer(const RpcServerOptions& options);
  const std::shared_ptr<TlsIdentity> tls_;  // the next needs it, as the server does that
  const std::shared_ptr<grpc::ServerCredentials> credentials_;
  std::unique_ptr<grpc::Server> server_;
  std::string endpoint_;
};

}  // namespace penstock
