#include "cli/shell/connect.h"

#include <grpcpp/grpcpp.h>

#include "base/lifecycle.h"
#include "base/rpc/rpc_server.h"
#include "base/rpc/tls.h"

namespace penstock {
namespace {

constexpr std::string_view kTlsScheme = "https://";
constexpr std::string_view kPlainScheme = "http://";

absl::StatusOr<std::shared_ptr<grpc::ChannelCredentials>> CredentialsOf(const TlsOptions& tls,
                                                                        Called called) {
  ASSIGN_OR_RETURN(const auto identity, TlsIdentity::Open({.cert = {"--cert", tls.cert},
                                                           .key = {"--key", tls.key},
                                                           .ca = {"--ca", tls.ca}},
                                                          TlsUse::kClient));
  if (identity == nullptr) return grpc::SslCredentials({});
  const bool member = called == Called::kProcess && !tls.cert.empty();
  return ChannelCredentialsOf(identity, member ? TlsCheck::kMember : TlsCheck::kHost);
}

}  // namespace

absl::StatusOr<std::shared_ptr<grpc::Channel>> Connect(const std::string& endpoint,
                                                       const TlsOptions& tls, Called called,
                                                       grpc::ChannelArguments arguments) {
  std::string address = endpoint;
  const bool https = address.starts_with(kTlsScheme);
  if (https) address.erase(0, kTlsScheme.size());
  const bool http = address.starts_with(kPlainScheme);
  if (http) address.erase(0, kPlainScheme.size());
  const bool given = !tls.ca.empty() || !tls.cert.empty() || !tls.key.empty();
  if (http && given) {
    return InvalidArgument("{} is asked for plainly, and --ca, --cert or --key for TLS", endpoint);
  }
  arguments.SetInt(GRPC_ARG_ENABLE_HTTP_PROXY, 0);  // A proxy would be asked for loopback too.
  auto credentials = grpc::InsecureChannelCredentials();
  if (https || given) {
    ASSIGN_OR_RETURN(credentials, CredentialsOf(tls, called));
  }
  // A pod that does not know its address's family writes [10.0.0.5]:8091, which gRPC takes for a
  // name.
  if (const auto parsed = ParseHostPort(address); parsed.ok()) address = FormatHostPort(*parsed);
  return grpc::CreateCustomChannel(address, credentials, arguments);
}

absl::Status AdminStatus(const grpc::Status& status, const std::string& endpoint) {
  if (status.ok()) return absl::OkStatus();
  // A public port asks for a key before it says that it has no such method; Admin asks for none.
  const bool is_another_port = status.error_code() == grpc::StatusCode::UNIMPLEMENTED ||
                               status.error_code() == grpc::StatusCode::UNAUTHENTICATED;
  if (is_another_port) {
    return FailedPrecondition("{} is no router's admin_listen: name one with --endpoint", endpoint);
  }
  return Annotate(FromGrpcStatus(status), endpoint);
}

}  // namespace penstock
