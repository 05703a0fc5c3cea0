#pragma once

#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/clock.h"
#include "base/metrics/metrics.h"
#include "http/server/http_server.h"

namespace penstock {

// A question about the process that probes ask without a certificate. `serving` is called on the
// server's thread and must not block.
struct HealthCheck {
  std::string path;  // e.g. "/live"
  std::function<bool()> serving;
};

// Serves /metrics over HTTP, read only, on threads of its own: in the text format of Prometheus, or
// of OpenMetrics to scrapers that prefer it; and health checks, each with 200 or 503. The
// destructor stops the threads. Callers that are silent, slow or many keep no scrape out: the
// limits of HttpServer hold.
//
// This room, http/metrics, may use base/, base/metrics, http/ and http/server only. It does not
// know what is counted.
class MetricsServer {
 public:
  // `listen` is host:port; port 0 selects a free port. Returns RESOURCE_EXHAUSTED if it cannot be
  // bound. `registry` outlives the server.
  static absl::StatusOr<std::unique_ptr<MetricsServer>> Start(const std::string& listen,
                                                              const MetricsRegistry& registry,
                                                              std::vector<HealthCheck> checks = {});

  const std::string& endpoint() const { return server_->endpoint(); }

 private:
  // Serializes on a handler thread.
  class Handler final : public HttpHandler {
   public:
    Handler(const MetricsRegistry& registry, std::vector<HealthCheck> checks)
        : registry_(registry), checks_(std::move(checks)) {}
    std::optional<HttpResponse> Screen(const HttpHead& head) override;
    void Handle(HttpRequest request, std::shared_ptr<Exchange> exchange) override;
    HttpResponse Refuse(int status, const std::string& message) override;

   private:
    // The check at `path`; null if there is none.
    const HealthCheck* Find(std::string_view path) const;

    const MetricsRegistry& registry_;
    const std::vector<HealthCheck> checks_;
  };

  MetricsServer(const MetricsRegistry& registry, std::vector<HealthCheck> checks)
      : handler_(registry, std::move(checks)) {}

  const SteadyClock clock_;
  MetricsRegistry unseen_;  // the edge metrics of this port, which nobody scrapes
  EdgeMetrics edge_metrics_{unseen_, "metrics"};
  Handler handler_;
  std::unique_ptr<HttpServer> server_;  // last, because it uses the others
};

}  // namespace penstock
