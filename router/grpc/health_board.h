#pragma once

#include <map>
#include <memory>
#include <optional>
#include <string>

#include "proto/grpc_standard.pb.h"
#include "router/grpc/standing_stream.h"

namespace penstock {

// The health of each service for grpc.health.v1; "" is the whole server. Any thread.
// https://github.com/grpc/grpc/blob/master/doc/health-checking.md
class HealthBoard {
 public:
  using Status = grpc_standard::v1::HealthCheckResponse::ServingStatus;

  // `streams` outlives it.
  explicit HealthBoard(StandingStreams& streams) : streams_(streams) {}

  // Sets a service's health and notifies its watchers.
  void Set(const std::string& service, bool serving) EXCLUDES(mutex_);

  // NOT_FOUND for a service that was never set.
  absl::StatusOr<Status> Check(const std::string& service) const EXCLUDES(mutex_);
  // Streams the status (SERVICE_UNKNOWN until it is set) and its changes. A slow client may miss
  // intermediate changes and gets the last one. The board outlives the exchange's server.
  void Watch(const std::string& service, const std::shared_ptr<Exchange>& exchange);

 private:
  class WatchStream;

  StandingStreams& streams_;
  mutable Mutex mutex_;
  std::map<std::string, Status> statuses_ GUARDED_BY(mutex_);
};

}  // namespace penstock
