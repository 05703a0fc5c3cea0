#include "http/edge_metrics.h"

namespace penstock {
namespace {

constexpr const char* kLimitNames[kEdgeLimits] = {
    "connections", "handshake", "head",  "body",  "bodies",   "slow_request",
    "stalled",     "streams",   "flood", "queue", "malformed"};
constexpr const char* kProtocolNames[kEdgeProtocols] = {"unknown", "http1", "http2"};
// The statuses that the API and the HTTP server answer with.
constexpr int kStatuses[] = {200, 400, 401, 403, 404, 405, 408, 413, 414,
                             415, 417, 429, 431, 500, 501, 503, 505};

prometheus::Counter& Responses(MetricsRegistry& registry, const std::string& port,
                               const std::string& code) {
  return registry.Counter("penstock_edge_responses_total", "Responses started, by status.",
                          {{"port", port}, {"code", code}});
}

}  // namespace

EdgeMetrics::EdgeMetrics(MetricsRegistry& registry, const std::string& port)
    : other_responses_(Responses(registry, port, "other")) {
  for (size_t i = 0; i < kEdgeLimits; ++i) {
    limits_[i] = &registry.Counter("penstock_edge_limit_hits_total",
                                   "Requests refused and connections closed, by limit.",
                                   {{"port", port}, {"limit", kLimitNames[i]}});
  }
  for (size_t i = 0; i < kEdgeProtocols; ++i) {
    connections_[i] =
        &registry.Gauge("penstock_edge_connections", "Open client connections, by protocol.",
                        {{"port", port}, {"protocol", kProtocolNames[i]}});
  }
  for (const int status : kStatuses) {
    responses_[status] = &Responses(registry, port, std::to_string(status));
  }
}

void EdgeMetrics::OnResponse(int status) {
  const auto known = responses_.find(status);
  (known == responses_.end() ? other_responses_ : *known->second).Increment();
}

EdgeLimit LimitOfStatus(int status) {
  switch (status) {
    case 408:
      return EdgeLimit::kSlowRequest;
    case 413:
      return EdgeLimit::kBody;
    case 414:
    case 431:
      return EdgeLimit::kHead;
    default:
      return EdgeLimit::kMalformed;
  }
}

}  // namespace penstock
