#pragma once

#include <cstdint>
#include <memory>

#include "base/mutex.h"
#include "base/status.h"
#include "base/tls/tls_files.h"

namespace penstock {

// The certificate that this process presents over TLS and the CA that it trusts, from files that
// may be replaced while it runs (docs/adr/0020). Any thread may call it. Shared by the servers and
// channels that use it.
//
// This room, base/tls, reads certificates and keys and detects their replacement. It may use base/,
// base/log and base/metrics only. It does not know gRPC or HTTP.
class TlsIdentity {
 public:
  // The contents of the files when they last matched each other.
  struct Loaded {
    TlsTexts texts;
    uint64_t version = 0;  // counts from 1
  };

  // Returns null if no file is given. Returns the errors of CheckTlsFields and ReadTls.
  static absl::StatusOr<std::shared_ptr<TlsIdentity>> Open(TlsFiles files, TlsUse use);

  // Returns the present contents; reads the files again if they have changed. Files that do not
  // match each other are logged and ignored.
  std::shared_ptr<const Loaded> Current() EXCLUDES(mutex_);
  // Returns the expiry time of the present certificate; 0: no certificate. Checks the files for
  // changes.
  int64_t ExpiresUnixSeconds() EXCLUDES(mutex_);

  // True if, as a server, callers must present a certificate that `ca` has signed.
  bool requires_client_certificate() const { return !files_.ca.path.empty(); }
  const TlsFiles& files() const { return files_; }

 private:
  TlsIdentity(TlsFiles files, TlsStamps stamps, TlsTexts texts);

  const TlsFiles files_;
  mutable Mutex mutex_;
  TlsStamps seen_ GUARDED_BY(mutex_);
  std::shared_ptr<const Loaded> loaded_ GUARDED_BY(mutex_);  // shared with handshakes
};

}  // namespace penstock
