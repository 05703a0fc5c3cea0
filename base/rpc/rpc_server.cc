#include "base/rpc/rpc_server.h"

#include <grpcpp/grpcpp.h>
#include <grpcpp/health_check_service_interface.h>

#include <mutex>
#include <utility>

#include "base/lifecycle.h"
#include "base/rpc/callback_threads.h"
#include "base/rpc/tls.h"

namespace penstock {
namespace {

constexpr int kMessageBytesMax = 16 << 20;  // limit of a received message
constexpr int kMetadataBytesMax = 16 << 10;
constexpr int kHandshakeMs = 10'000;

void EnableHealthOnce() {
  static std::once_flag once;
  std::call_once(once, [] { grpc::EnableDefaultHealthCheckService(true); });
}

}  // namespace

grpc::Status ToGrpcStatus(const absl::Status& status) {
  return {static_cast<grpc::StatusCode>(status.code()), Message(status)};
}

absl::Status FromGrpcStatus(const grpc::Status& status) {
  // No program of ours answers UNKNOWN. gRPC reports it where a connection broke in a way that it
  // has no code for ("Stream removed", after damaged TLS records).
  if (status.error_code() == grpc::StatusCode::UNKNOWN) {
    return absl::UnavailableError(status.error_message());
  }
  return {static_cast<absl::StatusCode>(status.error_code()), status.error_message()};
}

absl::StatusOr<std::unique_ptr<RpcServer>> RpcServer::Start(const RpcServerOptions& options) {
  ASSIGN_OR_RETURN(HostPort address, ParseHostPort(options.listen));
  EnableHealthOnce();
  KeepCallbackThreads();
  grpc::ServerBuilder builder;
  std::unique_ptr<RpcServer> started(new RpcServer(options));
  ASSIGN_OR_RETURN(started->acceptor_, ConnectionAcceptor::Listen(options.listen));
  started->connections_ = builder.experimental().AddExternalConnectionAcceptor(
      grpc::ServerBuilder::experimental_type::ExternalConnectionType::FROM_FD,
      started->credentials_);
  builder.SetMaxReceiveMessageSize(kMessageBytesMax);
  builder.AddChannelArgument(GRPC_ARG_MAX_METADATA_SIZE, kMetadataBytesMax);
  // A connection that sends nothing does not keep its descriptor.
  builder.AddChannelArgument(GRPC_ARG_SERVER_HANDSHAKE_TIMEOUT_MS, kHandshakeMs);
  // Peers may send keepalive pings this often; half-open connections are detected.
  builder.AddChannelArgument(GRPC_ARG_HTTP2_MIN_RECV_PING_INTERVAL_WITHOUT_DATA_MS, 1000);
  builder.AddChannelArgument(GRPC_ARG_KEEPALIVE_TIME_MS, 5000);
  builder.AddChannelArgument(GRPC_ARG_KEEPALIVE_TIMEOUT_MS, 3000);
  builder.AddChannelArgument(GRPC_ARG_HTTP2_MAX_PINGS_WITHOUT_DATA, 0);
  for (grpc::Service* service : options.services) builder.RegisterService(service);
  started->server_ = builder.BuildAndStart();
  if (started->server_ == nullptr) return ResourceExhausted("gRPC starts no server");
  address.port = started->acceptor_->port();
  started->endpoint_ = FormatHostPort(address);
  started->SetServing("", false);
  started->acceptor_->Start([take = started->connections_.get()](int listener, int connection) {
    grpc::experimental::ExternalConnectionAcceptor::NewConnectionParameters taken;
    taken.listener_fd = listener;
    taken.fd = connection;
    take->HandleNewConnection(&taken);
  });
  return started;
}

RpcServer::RpcServer(const RpcServerOptions& options)
    : tls_(options.tls), credentials_(ServerCredentialsOf(tls_)) {}

RpcServer::~RpcServer() { Stop(Duration::zero()); }

void RpcServer::SetServing(const std::string& service, bool serving) {
  server_->GetHealthCheckService()->SetServingStatus(service, serving);
}

void RpcServer::Stop(Duration grace) {
  if (server_ == nullptr) return;  // the server never listened
  // gRPC would not close a connection that it gets after its shutdown.
  std::call_once(accepts_no_more_, [this] { acceptor_->Stop(); });
  server_->Shutdown(std::chrono::system_clock::now() +
                    std::chrono::duration_cast<std::chrono::microseconds>(grace));
  server_->Wait();
}

}  // namespace penstock
