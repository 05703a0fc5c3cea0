#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "base/status.h"
#include "base/tls/tls_roles.h"

namespace penstock {

// A PEM file, and the configuration field that names it.
struct TlsFile {
  std::string field;
  std::string path;  // empty: no file
};

// The files of one identity.
struct TlsFiles {
  TlsFile cert;  // own certificate first, then the intermediate certificates
  TlsFile key;   // of that certificate, without a passphrase
  TlsFile ca;    // certificates, one of which must have signed the peer's
};

// The contents of the files, which have been checked to match each other.
struct TlsTexts {
  std::string cert;
  std::string key;
  std::string ca;
  int64_t expires_unix_s = 0;  // of the own certificate; 0: no certificate
  TlsRoles roles;              // of the own certificate
};

// The modification time and the inode of a file: a mounted Secret is replaced by changing a
// symbolic link.
struct TlsStamp {
  int64_t seconds = 0;
  int64_t nanoseconds = 0;
  uint64_t inode = 0;
  bool operator==(const TlsStamp&) const = default;
};
struct TlsStamps {
  TlsStamp cert, key, ca;
  bool operator==(const TlsStamps&) const = default;
};
TlsStamps StampsOf(const TlsFiles& files);

// Reads the given files. Errors name field and file: NOT_FOUND or PERMISSION_DENIED for a file that
// cannot be read; FAILED_PRECONDITION for a file that is not PEM, a key that does not match the
// certificate, and an expired certificate.
absl::StatusOr<TlsTexts> ReadTls(const TlsFiles& files);

// The purpose of the files, which determines the ones that are required together.
enum class TlsUse {
  kServer,  // certificate and key; a CA if callers must present a certificate
  kClient,  // a CA, or certificate and key, or both
  kMember,  // all three: the processes of a cluster authenticate each other
};
// Returns FAILED_PRECONDITION that names the missing file.
absl::Status CheckTlsFields(const TlsFiles& files, TlsUse use);

// The --tls_* fields of a public port, and the --cluster_* fields, which all processes of a cluster
// have.
template <class Config>
TlsFiles PublicTlsOf(const Config& config) {
  return {.cert = {"tls_cert", config.tls_cert()},
          .key = {"tls_key", config.tls_key()},
          .ca = {"tls_client_ca", config.tls_client_ca()}};
}
template <class Config>
TlsFiles ClusterTlsOf(const Config& config) {
  return {.cert = {"cluster_cert", config.cluster_cert()},
          .key = {"cluster_key", config.cluster_key()},
          .ca = {"cluster_ca", config.cluster_ca()}};
}

}  // namespace penstock
