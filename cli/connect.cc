#include "cli/connect.h"

#include <grpcpp/grpcpp.h>

#include "base/tls.h"

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
  return grpc::CreateCustomChannel(address, credentials, arguments);
}

}  // namespace penstock
