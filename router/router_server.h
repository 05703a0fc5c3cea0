#pragma once

#include <memory>
#include <string>

#include "base/metrics.h"
#include "base/rpc_server.h"
#include "router/service.h"

namespace penstock {

struct RouterServerOptions {
  std::string listen = "127.0.0.1:0";
  std::string metrics_listen;  // empty: no metrics
  ServedModel model;
  FleetOptions fleet;  // on_readiness is taken
  SessionLimits limits;
  uint32_t max_requests = 2048;
  Duration client_stall = std::chrono::seconds(30);
};

// The router: its fleet, its service, health (serving while a request could be placed) and
// reflection.
class RouterServer {
 public:
  // Errors of Fleet and RpcServer.
  static absl::StatusOr<std::unique_ptr<RouterServer>> Start(RouterServerOptions options);
  ~RouterServer();

  const std::string& endpoint() const { return rpc_->endpoint(); }
  // Empty when metrics are off.
  std::string metrics_endpoint() const;
  Fleet& fleet() { return *fleet_; }
  uint32_t open_requests() const { return open_.count(); }

  // Not serving any more, refuses new requests, and waits for the open ones, which are cancelled
  // after `limit`. Then nothing is open.
  void Drain(Duration limit);

 private:
  explicit RouterServer(RouterServerOptions options);
  absl::Status Start();
  void SetServing(bool serving);

  RouterServerOptions options_;
  SteadyClock clock_;
  MetricsRegistry metrics_;
  PlacementMetrics placement_metrics_{metrics_};
  OpenRequests open_;
  std::atomic<bool> draining_{false};
  std::unique_ptr<Fleet> fleet_;
  std::unique_ptr<InferenceCore> core_;
  std::unique_ptr<grpc::Service> service_;
  std::unique_ptr<RpcServer> rpc_;
  std::unique_ptr<MetricsServer> metrics_server_;
};

}  // namespace penstock
