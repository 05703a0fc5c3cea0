#pragma once

#include <memory>
#include <string>
#include <vector>

#include "base/mutex.h"
#include "base/status.h"
#include "base/tls/tls_identity.h"
#include "http/socket.h"

namespace penstock {

// The server's side of TLS 1.2 and 1.3 for the connections of a port. Each of them is shown the
// certificate that the files hold when it comes. Any thread.
class TlsAcceptor {
 public:
  // `protocols` are names of ALPN (RFC 7301), the preferred one first: a client that offers others
  // only is refused, one that offers none is not. FAILED_PRECONDITION where OpenSSL takes the
  // identity's files for no server's.
  static absl::StatusOr<std::unique_ptr<TlsAcceptor>> Create(std::shared_ptr<TlsIdentity> identity,
                                                             std::vector<std::string> protocols);

  // Takes `fd` over. Its handshake is part of the first reads and writes. Null where there is no
  // memory for it.
  std::unique_ptr<Socket> Accept(int fd) EXCLUDES(mutex_);

  struct Context;  // of all connections that are shown the same certificate

 private:
  TlsAcceptor(std::shared_ptr<TlsIdentity> identity, const std::vector<std::string>& protocols);
  std::shared_ptr<const Context> ContextNow() EXCLUDES(mutex_);

  const std::shared_ptr<TlsIdentity> identity_;
  const std::string protocols_;  // as ALPN sends them
  Mutex mutex_;
  uint64_t version_ GUARDED_BY(mutex_) = 0;  // of what the identity had loaded for context_
  std::shared_ptr<const Context> context_ GUARDED_BY(mutex_);
};

}  // namespace penstock
