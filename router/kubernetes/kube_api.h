#pragma once

#include <atomic>
#include <memory>
#include <string>

#include "base/clock.h"
#include "base/status.h"

namespace penstock {

// Room router/kubernetes: the Kubernetes API for autoscaling: a client, the Lease that one router
// holds, and the scale of the two Deployments. It may not know how the number of workers is
// decided.

struct KubeCall {
  const char* method = "GET";
  std::string path;                               // from / on
  std::string body = {};                          // JSON; empty: none
  const char* content_type = "application/json";  // of the body
  Duration timeout = std::chrono::seconds(3);     // of the whole call
};

struct KubeReply {
  int status = 0;
  std::string body;
  Duration retry_after{};  // the server asks to wait this long
};

// Calls to one API server over HTTPS, with a service account's token. One thread.
class KubeApi {
 public:
  static constexpr size_t kBodyBytesMax = 1 << 20;

  // `account`: a directory with token and ca.crt. INVALID_ARGUMENT: `url` is not https://, nor
  // http:// on a loopback address.
  static absl::StatusOr<std::unique_ptr<KubeApi>> Create(std::string url, std::string account);
  ~KubeApi();

  // Any status of HTTP is a reply. UNAVAILABLE: no answer came. FAILED_PRECONDITION: the account
  // has no token or no CA. RESOURCE_EXHAUSTED: the answer is longer than kBodyBytesMax.
  absl::StatusOr<KubeReply> Call(const KubeCall& call);
  // True: the present call and those to come end at once. Any thread.
  void SetCancelled(bool cancelled) { cancelled_ = cancelled; }

 private:
  struct Handle;
  KubeApi(std::string url, std::string account);

  const std::string url_;
  const std::string account_;
  std::atomic<bool> cancelled_{false};
  const std::unique_ptr<Handle> handle_;
};

// An error that names the call, for every status that is not 2xx. Conflicts are ABORTED.
absl::Status StatusOf(const KubeCall& call, const KubeReply& reply);

}  // namespace penstock
