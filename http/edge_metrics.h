#pragma once

#include <array>
#include <map>
#include <string>

#include "base/metrics/metrics.h"

namespace penstock {

// The reason why a port refuses a request or ends a connection.
enum class EdgeLimit {
  kConnections,  // the limit of connections, or no file descriptor left
  kHandshake,    // the TLS handshake failed or took too long
  kHead,         // too many bytes or headers in a request's head
  kBody,         // one request's body is too large
  kBodies,       // all requests together are too large
  kSlowRequest,  // a request did not arrive in time
  kStalled,      // the client does not read its answer
  kStreams,      // too many requests at once on one connection
  kFlood,        // too many frames that do not belong to a request
  kQueue,        // too many requests wait for a handler thread
  kMalformed,    // a violation of the protocol
};
inline constexpr size_t kEdgeLimits = 11;

enum class EdgeProtocol { kUnknown, kHttp1, kHttp2 };  // kUnknown: no bytes received yet
inline constexpr size_t kEdgeProtocols = 3;

// Metrics of one port below the API: limits, connections, statuses. Any thread.
class EdgeMetrics {
 public:
  EdgeMetrics(MetricsRegistry& registry, const std::string& port);

  void OnLimit(EdgeLimit limit) { limits_[static_cast<size_t>(limit)]->Increment(); }
  double hits(EdgeLimit limit) const { return limits_[static_cast<size_t>(limit)]->Value(); }
  // Counts the status of a response; a status that HTTP does not define counts as "other".
  void OnResponse(int status);
  prometheus::Gauge& connections(EdgeProtocol protocol) {
    return *connections_[static_cast<size_t>(protocol)];
  }

 private:
  std::array<prometheus::Counter*, kEdgeLimits> limits_;
  std::array<prometheus::Gauge*, kEdgeProtocols> connections_;
  std::map<int, prometheus::Counter*> responses_;
  prometheus::Counter& other_responses_;
};

// Counts a connection as open during its lifetime.
class CountedConnection {
 public:
  CountedConnection(EdgeMetrics& metrics, EdgeProtocol protocol)
      : gauge_(metrics.connections(protocol)) {
    gauge_.Increment();
  }
  ~CountedConnection() { gauge_.Decrement(); }
  CountedConnection(const CountedConnection&) = delete;
  CountedConnection& operator=(const CountedConnection&) = delete;

 private:
  prometheus::Gauge& gauge_;
};

// Maps the HTTP status of a refusal below the API to the limit that it stands for.
EdgeLimit LimitOfStatus(int status);

}  // namespace penstock
