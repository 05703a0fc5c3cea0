#pragma once

#include <memory>
#include <string>

#include "base/clock.h"
#include "base/metrics/metrics.h"
#include "http/server/http_server.h"

namespace penstock {

// Serves /metrics over HTTP, read only, on threads of its own: in the text format of Prometheus, or
// of OpenMetrics to scrapers that prefer it. The destructor stops them. Callers
// that are silent, slow or many keep no scrape out: the limits of HttpServer hold.
//
// This room, http/metrics, may use base/, base/metrics, http/ and http/server only. It does not
// know what is counted.
class MetricsServer {
 public:
  // `listen` is host:port; port 0 selects a free port. Returns RESOURCE_EXHAUSTED if it cannot be
  // bound. `registry` outlives the server.
  static absl::StatusOr<std::unique_ptr<MetricsServer>> Start(const std::string& listen,
                                                              const MetricsRegistry& registry);

  const std::string& endpoint() const { return server_->endpoint(); }

 private:
  // Serializes on a handler thread.
  class Handler final : public HttpHandler {
   public:
    explicit Handler(const MetricsRegistry& registry) : registry_(registry) {}
    std::optional<HttpResponse> Screen(const HttpHead& head) override;
    void Handle(HttpRequest request, std::shared_ptr<Exchange> exchange) override;
    HttpResponse Refuse(int status, const std::string& message) override;

   private:
    const MetricsRegistry& registry_;
  };

  explicit MetricsServer(const MetricsRegistry& registry) : handler_(registry) {}

  const SteadyClock clock_;
  MetricsRegistry unseen_;  // the edge metrics of this port, which nobody scrapes
  EdgeMetrics edge_metrics_{unseen_, "metrics"};
  Handler handler_;
  std::unique_ptr<HttpServer> server_;  // last, because it uses the others
};

}  // namespace penstock
