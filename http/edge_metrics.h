#pragma once

#include <array>
#include <map>
#include <string>

#include "base/metrics/metrics.h"

namespace penstock {

// Why a port refuses what a client sends, or ends its connection.
enum class EdgeLimit {
  kConnections,  // as many as there may be, or no file descriptor for another
  kHandshake,    // of TLS: it failed, or took too long
  kHead,         // too many bytes or headers
  kBody,         // of one request
  kBodies,       // of all requests together
  kSlowRequest,  // it did not arrive in time
  kStalled,      // the client does not read what it has asked for
  kStreams,      // requests of one connection at once
  kFlood,        // frames that move no request on
  kQueue,        // too many requests wait for a thread
  kMalformed,    // not what the protocol says
};
inline constexpr size_t kEdgeLimits = 11;

enum class EdgeProtocol { kUnknown, kHttp1, kHttp2 };  // the first: nothing has come yet
inline constexpr size_t kEdgeProtocols = 3;

// What clients of one port meet below the API. Any thread.
class EdgeMetrics {
 public:
  EdgeMetrics(MetricsRegistry& registry, const std::string& port);

  void OnLimit(EdgeLimit limit) { limits_[static_cast<size_t>(limit)]->Increment(); }
  double hits(EdgeLimit limit) const { return limits_[static_cast<size_t>(limit)]->Value(); }
  // A status that a response begins with; what HTTP does not name counts as "other".
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

// A connection that is open, for as long as this lives.
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

// Which limit a refusal below the API is about, by its HTTP status.
EdgeLimit LimitOfStatus(int status);

}  // namespace penstock
