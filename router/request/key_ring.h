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

// The content of a keys file: tenants with their limits, and the SHA-256 of each key.
//   {"tenants": [{"name": "acme", "requests": 32, "tokens_per_minute": 600000,
//                 "kv_policy": "exact", "kv_policies": ["near-lossless"], "priority_max": 10}],
//    "keys": [{"id": "acme-ci", "tenant": "acme", "sha256": "9f86d0...", "expires": "2027-12-31"}]}
struct KeyFile {
  struct Key {
    std::string id;  // for logs
    std::string tenant;
    std::optional<int64_t> expires;  // Unix seconds: the end of that day, UTC; nullopt: never
  };
  std::map<std::string, TenantLimits> tenants;  // by name
  std::map<std::string, Key> keys;              // by the digest's 32 bytes
  std::vector<std::string> warnings;  // one for each old field name that is still accepted
};

// FAILED_PRECONDITION names the entry and the values it may have; unknown fields are errors. The
// old name `priority_most` of `priority_max` is accepted for one release, with a warning. Pure.
absl::StatusOr<KeyFile> ParseKeyFile(std::string_view text);
// SHA-256, 32 bytes. Look-ups are by digest, so that their time reveals nothing about the keys.
std::string KeyDigest(std::string_view key);

// Counters of refused callers, by reason, and the state of the file. The registry outlives it. Any
// thread.
struct AuthMetrics {
  explicit AuthMetrics(MetricsRegistry& registry);
  prometheus::Counter& missing;
  prometheus::Counter& malformed;
  prometheus::Counter& unknown;
  prometheus::Counter& expired;
  prometheus::Gauge& last_reload_successful;  // 1 or 0
};

// The API keys in force. A thread of its own looks every second whether the file has changed, and
// reads it again; a file that cannot be used is logged and the previous keys stay. Any thread.
class KeyRing {
 public:
  // Errors of ParseKeyFile; NOT_FOUND when there is no such file. `metrics` and `clock` outlive it.
  static absl::StatusOr<std::unique_ptr<KeyRing>> Open(const std::string& path,
                                                       AuthMetrics& metrics, const Clock& clock);
  ~KeyRing();
  KeyRing(const KeyRing&) = delete;
  KeyRing& operator=(const KeyRing&) = delete;

  // The caller behind an Authorization header, "Bearer KEY"; nullptr: there was no header.
  // UNAUTHENTICATED says that the key is missing, malformed, unknown or expired, and never shows
  // any part of it.
  absl::StatusOr<Caller> Authenticate(const std::string* authorization) EXCLUDES(mutex_);
  // Reads the file now. Errors of Open; then the keys stay as they were.
  absl::Status Reload() EXCLUDES(mutex_);

 private:
  KeyRing(std::string path, AuthMetrics& metrics, const Clock& clock)
      : path_(std::move(path)), metrics_(metrics), clock_(clock) {}
  // The watcher's loop. `seen` is the version of the file that was read last.
  void Watch(std::string seen) EXCLUDES(mutex_);

  const std::string path_;
  AuthMetrics& metrics_;
  const Clock& clock_;
  Mutex mutex_;
  CondVar stop_changed_;
  KeyFile file_ GUARDED_BY(mutex_);
  // By name. Tenants of an older file stay: their requests may still be open, and their use counts
  // across reloads.
  std::map<std::string, std::shared_ptr<Tenant>> tenants_ GUARDED_BY(mutex_);
  bool stop_ GUARDED_BY(mutex_) = false;
  std::thread watcher_;
};

}  // namespace penstock
