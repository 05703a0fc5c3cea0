#pragma once

#include <memory>
#include <string>
#include <vector>

#include "base/mutex.h"
#include "base/status.h"
#include "base/tls/tls_identity.h"
#include "http/socket.h"

namespace penstock {

// The server's side of TLS 1.2 and 1.3 for the connections of a port. A new connection is shown the
// certificate that the files contain at that time. Any thread may call it.
class TlsAcceptor {
 public:
  // `protocols` are ALPN names (RFC 7301), the preferred one first. A client that offers only other
  // protocols is refused; a client that offers none is accepted. Returns FAILED_PRECONDITION if
  // OpenSSL rejects the identity's files.
  static absl::StatusOr<std::unique_ptr<TlsAcceptor>> Create(std::shared_ptr<TlsIdentity> identity,
                                                             std::vector<std::string> protocols);

  // Takes ownership of `fd`. The handshake happens during the first reads and writes. Returns null
  // if memory is short.
  std::unique_ptr<Socket> Accept(int fd) EXCLUDES(mutex_);

  struct Context;  // shared by all connections that were shown the same certificate

 private:
  TlsAcceptor(std::shared_ptr<TlsIdentity> identity, const std::vector<std::string>& protocols);
  std::shared_ptr<const Context> CurrentContext() EXCLUDES(mutex_);

  const std::shared_ptr<TlsIdentity> identity_;
  const std::string protocols_;  // in ALPN's wire format
  Mutex mutex_;
  uint64_t version_ GUARDED_BY(mutex_) = 0;  // TlsIdentity version that context_ was made from
  std::shared_ptr<const Context> context_ GUARDED_BY(mutex_);
};

}  // namespace penstock
