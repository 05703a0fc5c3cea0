#include "http/metrics/metrics_server.h"

#include <prometheus/text_serializer.h>

#include <algorithm>
#include <utility>

#include "base/metrics/open_metrics.h"

namespace penstock {
namespace {

constexpr char kTextFormat[] = "text/plain; version=0.0.4; charset=utf-8";
// Scrapers are few; beyond this, the caller that is silent for longest makes room.
constexpr uint32_t kConnectionsMax = 64;

HttpResponse Text(int status, const std::string& message) {
  return {.status = status, .headers = {{"content-type", "text/plain"}}, .body = message + "\n"};
}

}  // namespace

absl::StatusOr<std::unique_ptr<MetricsServer>> MetricsServer::Start(
    const std::string& listen, const MetricsRegistry& registry, std::vector<HealthCheck> checks) {
  std::unique_ptr<MetricsServer> started(new MetricsServer(registry, std::move(checks)));
  HttpServerOptions options{.listen = listen,
                            .listen_flag = "--metrics_listen",
                            .loops = 1,
                            .handlers = 1,
                            .max_connections = kConnectionsMax,
                            .max_queued = kConnectionsMax,
                            .protocols = Protocols::kHttp1};
  options.limits.body_bytes = 0;
  ASSIGN_OR_RETURN(started->server_, HttpServer::Start(options, started->handler_,
                                                       started->edge_metrics_, started->clock_));
  return started;
}

std::optional<HttpResponse> MetricsServer::Handler::Screen(const HttpHead& head) {
  if (head.path != "/metrics" && Find(head.path) == nullptr) {
    return Refuse(404, "metrics are at /metrics");
  }
  if (head.method != "GET" && head.method != "HEAD") return Refuse(405, "only GET is allowed");
  return std::nullopt;
}

void MetricsServer::Handler::Handle(HttpRequest request, std::shared_ptr<Exchange> exchange) {
  if (const HealthCheck* const check = Find(request.head.path)) {
    const bool serving = check->serving();
    return exchange->Respond(Text(serving ? 200 : 503, serving ? "ok" : "not serving"));
  }
  const std::string* const accept = request.head.Find("accept");
  if (accept != nullptr && PrefersOpenMetrics(*accept)) {
    return exchange->Respond(
        {.headers = {{"content-type", kOpenMetricsType}}, .body = OpenMetricsText(registry_)});
  }
  exchange->Respond({.headers = {{"content-type", kTextFormat}},
                     .body = prometheus::TextSerializer().Serialize(registry_.Collect())});
}

const HealthCheck* MetricsServer::Handler::Find(std::string_view path) const {
  const auto found = std::ranges::find_if(
      checks_, [&](const HealthCheck& check) { return std::string_view(check.path) == path; });
  return found == checks_.end() ? nullptr : &*found;
}

HttpResponse MetricsServer::Handler::Refuse(int status, const std::string& message) {
  return Text(status, message);
}

}  // namespace penstock
