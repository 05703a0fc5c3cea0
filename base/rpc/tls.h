#pragma once

#include <memory>

#include "base/tls/tls_identity.h"

namespace grpc {
class ChannelCredentials;
class ServerCredentials;
}  // namespace grpc

namespace penstock {

// Credentials for one port of one gRPC server; insecure if `identity` is null. `identity` outlives
// the server. Every handshake checks whether the files have changed.
std::shared_ptr<grpc::ServerCredentials> ServerCredentialsOf(
    const std::shared_ptr<TlsIdentity>& identity);

enum class TlsCheck {
  kHost,    // the server's certificate must name the host that is called
  kMember,  // the CA must have signed it, for any name: workers are found by address
};
// Credentials for any number of gRPC channels; insecure if `identity` is null. New connections use
// the files' contents of at most a second ago.
std::shared_ptr<grpc::ChannelCredentials> ChannelCredentialsOf(
    const std::shared_ptr<TlsIdentity>& identity, TlsCheck check = TlsCheck::kMember);

}  // namespace penstock
