#pragma once

#include <cstdint>
#include <memory>

#include "base/mutex.h"
#include "base/status.h"
#include "base/tls/tls_files.h"

namespace penstock {

// What this process shows of itself over TLS and whom it trusts, from files that may be replaced
// while it runs (docs/adr/0020). Any thread.
class TlsIdentity {
 public:
  // What the files said when they last fitted together.
  struct Loaded {
    TlsTexts texts;
    uint64_t version = 0;  // counts from 1
  };

  // Null where no file is given. Errors of CheckTlsFields and ReadTls.
  static absl::StatusOr<std::shared_ptr<TlsIdentity>> Open(TlsFiles files, TlsUse use);

  // Looks at the files, and reads them where they have changed. What does not fit together changes
  // nothing and is logged.
  std::shared_ptr<const Loaded> Now() EXCLUDES(mutex_);
  // When the certificate that is shown now ends; 0: there is none. Looks at the files.
  int64_t ExpiresUnixSeconds() EXCLUDES(mutex_);

  // As a server: callers must show a certificate that the `ca` has signed.
  bool asks_callers() const { return !files_.ca.path.empty(); }
  const TlsFiles& files() const { return files_; }

 private:
  TlsIdentity(TlsFiles files, TlsStamps stamps, TlsTexts texts);

  const TlsFiles files_;
  mutable Mutex mutex_;
  TlsStamps seen_ GUARDED_BY(mutex_);
  std::shared_ptr<const Loaded> loaded_ GUARDED_BY(mutex_);  // shared with handshakes
};

}  // namespace penstock
