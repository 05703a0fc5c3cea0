#pragma once

#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <thread>

#include "base/metrics/metrics.h"
#include "router/request/tenant.h"

namespace penstock {

// What a keys file says: tenants with their limits, and the SHA-256 of each key.
//   {"tenants": [{"name": "acme", "requests": 32, "tokens_per_minute": 600000,
//                 "kv_policy": "exact", "kv_policies": ["near-lossless"], "priority_max": 10}],
//    "keys": [{"id": "acme-ci", "tenant": "acme", "sha256": "9f86d0...", "expires": "2027-12-31"}]}
struct KeyFile {
  struct Key {
    std::string id;  // for logs
    std::string tenant;
    std::optional<int64_t> expires;  // Unix seconds: the end of that day, UTC
  };
  std::map<std::string, TenantLimits> tenants;
  std::map<std::string, Key> keys;  // by the digest's 32 bytes
};

// FAILED_PRECONDITION names the entry and what it may be; unknown fields are errors.
absl::StatusOr<KeyFile> ParseKeyFile(std::string_view text);
// 32 bytes. A key's digest is what is looked up, so time tells nothing of how much of it was right.
std::string KeyDigest(std::string_view key);

// Callers that were turned away, by why.
struct AuthMetrics {
  explicit AuthMetrics(MetricsRegistry& registry);
  prometheus::Counter& missing;
  prometheus::Counter& malformed;
  prometheus::Counter& unknown;
  prometheus::Counter& expired;
};

// The keys that are good now. A file that changes is read again; one that has become wrong changes
// nothing and is logged. Any thread.
class KeyRing {
 public:
  // Errors of ParseKeyFile; NOT_FOUND when there is no such file. `metrics` and `clock` outlive it.
  static absl::StatusOr<std::unique_ptr<KeyRing>> Open(const std::string& path,
                                                       AuthMetrics& metrics, const Clock& clock);
  ~KeyRing();
  KeyRing(const KeyRing&) = delete;
  KeyRing& operator=(const KeyRing&) = delete;

  // Of an Authorization header, "Bearer KEY". UNAUTHENTICATED says whether it is missing, unknown
  // or expired, and never any of it.
  absl::StatusOr<Caller> Authenticate(const std::string* authorization) EXCLUDES(mutex_);
  // Reads the file now. Also done each second.
  absl::Status Reload() EXCLUDES(mutex_);

 private:
  KeyRing(std::string path, AuthMetrics& metrics, const Clock& clock)
      : path_(std::move(path)), metrics_(metrics), clock_(clock) {}
  // From the version of the file that was read.
  void Watch(std::string seen) EXCLUDES(mutex_);

  const std::string path_;
  AuthMetrics& metrics_;
  const Clock& clock_;
  Mutex mutex_;
  CondVar stop_changed_;
  KeyFile file_ GUARDED_BY(mutex_);
  // Those of an older file stay: their requests may still be open, and limits count across reloads.
  std::map<std::string, std::shared_ptr<Tenant>> tenants_ GUARDED_BY(mutex_);
  bool stop_ GUARDED_BY(mutex_) = false;
  std::thread watcher_;
};

}  // namespace penstock
