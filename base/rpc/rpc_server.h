#pragma once

#include <grpcpp/support/status.h>

#include <cstdint>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "base/clock.h"
#include "base/rpc/connection_acceptor.h"
#include "base/status.h"
#include "base/tls/tls_identity.h"

namespace grpc::experimental {
class ExternalConnectionAcceptor;
}  // namespace grpc::experimental
namespace grpc {
class Server;
class ServerCredentials;
class Service;
}  // namespace grpc

namespace penstock {

// Conversions between statuses: absl and gRPC use the same code numbers. gRPC's UNKNOWN becomes
// UNAVAILABLE: the connection broke.
grpc::Status ToGrpcStatus(const absl::Status& status);
absl::Status FromGrpcStatus(const grpc::Status& status);

// Options of RpcServer::Start.
struct RpcServerOptions {
  std::string listen;                          // host:port; port 0 selects a free port
  std::vector<grpc::Service*> services;        // not owned; outlive the server
  std::shared_ptr<TlsIdentity> tls = nullptr;  // shared with channels; null: no TLS
};

// A gRPC server with the health service, for ports inside a cluster. Any thread may call it.
//
// This room, base/rpc, wraps gRPC: servers, credentials, streams and timers. It may use base/,
// base/config, base/log, base/net and base/tls only. It does not know the services of other rooms.
class RpcServer {
 public:
  // Returns RESOURCE_EXHAUSTED (exit code: OS error) if the address cannot be bound.
  static absl::StatusOr<std::unique_ptr<RpcServer>> Start(const RpcServerOptions& options);
  ~RpcServer();

  // host:port with the port that was bound.
  const std::string& endpoint() const { return endpoint_; }
  // Sets the answer of grpc.health.v1 for `service` ("" is the whole server). NOT_SERVING at start.
  void SetServing(const std::string& service, bool serving);
  // Refuses new calls; open calls may finish within `grace` and are then cancelled.
  void Stop(Duration grace);

 private:
  explicit RpcServer(const RpcServerOptions& options);
  const std::shared_ptr<TlsIdentity> tls_;  // used by credentials_, so it is destroyed later
  const std::shared_ptr<grpc::ServerCredentials> credentials_;
  std::unique_ptr<ConnectionAcceptor> acceptor_;
  std::once_flag accepts_no_more_;
  std::unique_ptr<grpc::experimental::ExternalConnectionAcceptor> connections_;  // of the acceptor
  std::unique_ptr<grpc::Server> server_;
  std::string endpoint_;
};

}  // namespace penstock
