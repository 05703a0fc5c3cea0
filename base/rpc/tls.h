#pragma once

#include <memory>

#include "base/tls/tls_identity.h"

namespace grpc {
class ChannelCredentials;
class ServerCredentials;
}  // namespace grpc

namespace penstock {

// For one port of one gRPC server, which `identity` outlives; plain where it is null. Every
// handshake looks at the files.
std::shared_ptr<grpc::ServerCredentials> ServerCredentialsOf(
    const std::shared_ptr<TlsIdentity>& identity);

enum class TlsCheck {
  kHost,    // the server's certificate names the host that is called
  kMember,  // the CA has signed it, whatever it names: workers are found by address
};
// For any number of gRPC channels; plain where `identity` is null. New connections use what the
// files said a second ago.
std::shared_ptr<grpc::ChannelCredentials> ChannelCredentialsOf(
    const std::shared_ptr<TlsIdentity>& identity, TlsCheck check = TlsCheck::kMember);

}  // namespace penstock
