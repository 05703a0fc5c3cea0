#pragma once

#include <memory>
#include <string>
#include <vector>

#include "base/mutex.h"
#include "base/net/socket.h"
#include "base/status.h"
#include "base/tls/tls_identity.h"

namespace penstock {

// How the connections of a port use TLS.
struct TlsRules {
  // ALPN names (RFC 7301), the preferred one first. A peer that offers only other protocols is
  // refused.
  std::vector<std::string> protocols;
  // For connections between the processes of a cluster, at both ends: TLS 1.3 only, a peer must
  // name one of `protocols`, and no session is resumed, so that no handshake can be replayed. The
  // identity has a CA, which must have signed the peer's certificate; the certificate's name does
  // not matter. Otherwise, for a public port: TLS 1.2 and 1.3, and a peer may name no protocol.
  bool between_members = false;
};

// Makes sockets over TLS, for the server's or the client's end. A new connection is shown the
// certificate that the files contain at that time. Any thread may call it.
class TlsSockets {
 public:
  // Returns FAILED_PRECONDITION if OpenSSL rejects the identity's files.
  static absl::StatusOr<std::unique_ptr<TlsSockets>> Create(std::shared_ptr<TlsIdentity> identity,
                                                            const TlsRules& rules);

  // Both take ownership of `fd`, a connected, non-blocking socket. The handshake happens during the
  // first reads and writes. They return null if memory is short.
  std::unique_ptr<Socket> Accept(int fd) EXCLUDES(mutex_);
  // Only between members.
  std::unique_ptr<Socket> Connect(int fd) EXCLUDES(mutex_);

  struct Context;  // shared by all connections that were shown the same certificate

 private:
  TlsSockets(std::shared_ptr<TlsIdentity> identity, const TlsRules& rules);
  std::shared_ptr<const Context> CurrentContext() EXCLUDES(mutex_);

  const std::shared_ptr<TlsIdentity> identity_;
  const std::string protocols_;  // in ALPN's wire format
  const bool between_members_;
  Mutex mutex_;
  uint64_t version_ GUARDED_BY(mutex_) = 0;  // TlsIdentity version that context_ was made from
  std::shared_ptr<const Context> context_ GUARDED_BY(mutex_);
};

}  // namespace penstock
