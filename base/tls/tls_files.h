#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "base/status.h"

namespace penstock {

// A PEM file, and the configuration field that names it.
struct TlsFile {
  std::string field;
  std::string path;  // empty: none
};

// Of one identity.
struct TlsFiles {
  TlsFile cert;  // its own certificate first, then those that lead to the CA
  TlsFile key;   // of that certificate, without a passphrase
  TlsFile ca;    // certificates, one of which must have signed the other side's
};

// What stands in them. All of it fits together.
struct TlsTexts {
  std::string cert;
  std::string key;
  std::string ca;
  int64_t expires_unix_s = 0;  // the own certificate; 0: there is none
};

// When a file was written, and which file that is: a Secret that is mounted changes by a symbolic
// link.
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

// Reads what is given. Errors name field and file: NOT_FOUND or PERMISSION_DENIED for a file that
// cannot be read; FAILED_PRECONDITION for one that is no PEM, a key that is not the certificate's,
// and a certificate that has expired.
absl::StatusOr<TlsTexts> ReadTls(const TlsFiles& files);

// What files are for, and so which belong together where any is given.
enum class TlsUse {
  kServer,  // certificate and key; a CA where callers must show a certificate
  kClient,  // a CA, or certificate and key, or both
  kMember,  // all three: the processes of a cluster, which ask each other
};
// FAILED_PRECONDITION names what is missing.
absl::Status CheckTlsFields(const TlsFiles& files, TlsUse use);

// The --tls_* fields of a public port, and the --cluster_* fields that all processes of a cluster
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
