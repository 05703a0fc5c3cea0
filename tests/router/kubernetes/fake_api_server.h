#pragma once

#include <atomic>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "base/metrics/metrics.h"
#include "base/mutex.h"
#include "http/server/http_server.h"

namespace penstock {

// An API server of Kubernetes as far as autoscaling uses it, over HTTPS on loopback: one Lease with
// resource versions, and the scale of Deployments.
class FakeApiServer final : public HttpHandler {
 public:
  // Requests must have this token.
  explicit FakeApiServer(std::shared_ptr<TlsIdentity> tls, std::string token = "token-1");
  ~FakeApiServer() override { server_.reset(); }

  std::string url() const { return "https://" + server_->endpoint(); }

  void SetReplicas(const std::string& deployment, uint32_t replicas);
  uint32_t replicas(const std::string& deployment) const;
  std::string holder() const;  // of the Lease; empty: it is free
  // The holder at the time of each change of a scale, and who asked for it (the token's name).
  struct Change {
    std::string deployment;
    uint32_t replicas = 0;
    std::string holder;
  };
  std::vector<Change> changes() const;
  int calls() const { return calls_; }

  // Faults, for all requests from now on.
  std::atomic<int> refuse_with{0};         // a status
  std::atomic<int> retry_after_s{0};       // of a refusal
  std::atomic<int> refuse_writes_with{0};  // a status, of PATCH, PUT and POST alone
  std::atomic<bool> hold{false};           // no answer, until it is false
  std::atomic<bool> lock_p{false};         // changes of the Deployment p are refused
  void SetToken(const std::string& token);
  // Every Lease that is written gets a conflict, as if another router were faster.
  std::atomic<bool> conflict{false};

 private:
  std::optional<HttpResponse> Screen(const HttpHead&) override { return std::nullopt; }
  HttpResponse Refuse(int status, const std::string& message) override;
  void Handle(HttpRequest request, std::shared_ptr<Exchange> exchange) override;
  HttpResponse Answer(const HttpRequest& request);
  std::string LeaseObject() const REQUIRES(mutex_);  // as JSON
  HttpResponse AnswerLease(const HttpRequest& request) REQUIRES(mutex_);
  HttpResponse AnswerScale(const HttpRequest& request) REQUIRES(mutex_);

  SteadyClock clock_;
  MetricsRegistry metrics_;
  EdgeMetrics edge_{metrics_, "http"};
  std::atomic<int> calls_{0};
  mutable Mutex mutex_;
  std::string token_ GUARDED_BY(mutex_);
  std::string lease_ GUARDED_BY(mutex_);  // its spec as JSON; empty: it does not exist
  int version_ GUARDED_BY(mutex_) = 0;
  std::map<std::string, uint32_t> replicas_ GUARDED_BY(mutex_);
  std::vector<Change> changes_ GUARDED_BY(mutex_);
  std::unique_ptr<HttpServer> server_;
};

}  // namespace penstock
