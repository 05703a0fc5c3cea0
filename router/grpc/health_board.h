#pragma once

#include <map>
#include <memory>
#include <optional>
#include <string>

#include "proto/grpc_standard.pb.h"
#include "router/grpc/standing_stream.h"

namespace penstock {

// What grpc.health.v1 says of each service; "" is the whole server. Any thread.
// https://github.com/grpc/grpc/blob/master/doc/health-checking.md
class HealthBoard {
 public:
  using Status = grpc_standard::v1::HealthCheckResponse::ServingStatus;

  // `streams` outlives it.
  explicit HealthBoard(StandingStreams& streams) : streams_(streams) {}

  // Those who watch are told.
  void Set(const std::string& service, bool serving) EXCLUDES(mutex_);

  // NOT_FOUND for a service that was never set.
  absl::StatusOr<Status> Check(const std::string& service) const EXCLUDES(mutex_);
  // Answers with the status now (SERVICE_UNKNOWN until there is one) and with every other one that
  // it changes to. Of changes that a slow client misses it is told the last. The board outlives
  // the exchange's server.
  void Watch(const std::string& service, const std::shared_ptr<Exchange>& exchange);

 private:
  class WatchStream;

  StandingStreams& streams_;
  mutable Mutex mutex_;
  std::map<std::string, Status> statuses_ GUARDED_BY(mutex_);
};

}  // namespace penstock
