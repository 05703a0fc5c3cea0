#pragma once

#include <cstdint>
#include <memory>

#include "base/mutex.h"
#include "base/status.h"
#include "base/tls_files.h"

namespace grpc {
class ChannelCredentials;
class ServerCredentials;
}  // namespace grpc

namespace penstock {

// What this process shows of itself over TLS and whom it trusts, from files that may be replaced
// while it runs (docs/adr/0020). Any thread.
class TlsIdentity {
 public:
  // Null where no file is given. Errors of CheckTlsFields and ReadTls.
  static absl::StatusOr<std::shared_ptr<TlsIdentity>> Open(TlsFiles files, TlsUse use);

  // For one port of one server, which it outlives. Every handshake looks at the files; what does
  // not fit together changes nothing and is logged. Where there is a `ca`, callers must show a
  // certificate that it has signed.
  std::shared_ptr<grpc::ServerCredentials> ForServer();

  enum class Check {
    kHost,    // the server's certificate names the host that is called
    kMember,  // the CA has signed it, whatever it names: workers are found by address
  };
  // For any number of channels. New connections use what the files said a second ago.
  std::shared_ptr<grpc::ChannelCredentials> ForChannels(Check check) const;

  // When the certificate that is shown now ends; 0: there is none. Looks at the files.
  int64_t ExpiresUnixSeconds() EXCLUDES(mutex_);

 private:
  struct Loaded {
    TlsTexts texts;
    uint64_t version = 0;  // counts from 1
  };
  class Server;

  TlsIdentity(TlsFiles files, TlsStamps stamps, TlsTexts texts);
  std::shared_ptr<const Loaded> Now() EXCLUDES(mutex_);

  const TlsFiles files_;
  mutable Mutex mutex_;
  TlsStamps seen_ GUARDED_BY(mutex_);
  std::shared_ptr<const Loaded> loaded_ GUARDED_BY(mutex_);  // shared with handshakes
};

// Of a channel: `identity` as above, or plain where it is null.
std::shared_ptr<grpc::ChannelCredentials> ChannelCredentialsOf(
    const std::shared_ptr<TlsIdentity>& identity,
    TlsIdentity::Check check = TlsIdentity::Check::kMember);

}  // namespace penstock
