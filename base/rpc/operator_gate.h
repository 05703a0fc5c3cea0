#pragma once

#include <memory>

#include "base/status.h"
#include "base/tls/tls_identity.h"

namespace grpc {
class ServerContextBase;
}

namespace penstock {

// Decides which callers of a cluster's ports may make operators' calls, by the roles that
// certificates name (base/tls/tls_roles.h). Without certificates every caller may. Any thread.
class OperatorGate {
 public:
  // `identity` is this process's; null: no TLS. Logs one warning if its certificate names no role.
  explicit OperatorGate(std::shared_ptr<TlsIdentity> identity);

  // PERMISSION_DENIED unless the caller may.
  absl::Status Check(const grpc::ServerContextBase& context) const;

 private:
  const std::shared_ptr<TlsIdentity> identity_;  // shared with servers and channels
};

}  // namespace penstock
