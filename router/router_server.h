#pragma once

#include <memory>
#include <optional>
#include <string>

#include "base/metrics/metrics.h"
#include "base/rpc/callback_threads.h"
#include "base/rpc/process_info.h"
#include "base/rpc/rpc_server.h"
#include "http/server/http_server.h"
#include "router/fleet/role_keeper.h"
#include "router/grpc/handler.h"
#include "router/metrics/request_metrics.h"
#include "router/openai/handler.h"
#include "router/page/page_handler.h"

namespace penstock {

struct RouterServerOptions {
  std::string listen = "127.0.0.1:0";
  std::string http_listen;                     // empty: no HTTP
  std::string metrics_listen;                  // empty: no metrics
  std::string admin_listen;                    // empty: no Admin
  ProcessInfo process = {};                    // of Admin
  std::string keys_file;                       // empty: no keys are needed
  std::shared_ptr<TlsIdentity> tls = nullptr;  // of `listen`; null: plain
  bool http_tls = false;                       // of `http_listen`, too
  ServedModel model;
  FleetOptions fleet;  // on_readiness is taken
  SessionLimits limits;
  SloTargets slo;
  uint32_t max_requests = 2048;
  Duration client_stall = std::chrono::seconds(30);
  uint32_t http_connections = 4096;
  std::optional<RoleKeeper::Options> roles = RoleKeeper::Options();  // nothing: no advice on them
  bool page = true;                                                  // at /, where there is HTTP
  Duration request_limit = std::chrono::seconds(600);                // of one that comes by HTTP
};

// The router: its fleet, its service, health (serving while a request could be placed) and
// reflection.
class RouterServer {
 public:
  // Errors of Fleet and RpcServer.
  static absl::StatusOr<std::unique_ptr<RouterServer>> Start(RouterServerOptions options);
  ~RouterServer();

  const std::string& endpoint() const { return endpoint_; }
  // Empty when HTTP is off.
  std::string http_endpoint() const { return http_ == nullptr ? "" : http_->endpoint(); }
  // Empty when it is off.
  std::string admin_endpoint() const { return admin_ == nullptr ? "" : admin_->endpoint(); }
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
  // What both public ports have in common.
  HttpServerOptions PortOptions(const std::string& listen, const std::string& flag) const;
  absl::Status StartGrpc();
  absl::Status StartHttp();
  absl::Status StartAdmin();
  void SetServing(bool serving);
  void FinishClients(TimePoint deadline, bool patient);
  void AddGauges();

  CallbackThreads callbacks_;  // of calls to workers: the last to go
  RouterServerOptions options_;
  SteadyClock clock_;
  MetricsRegistry metrics_;
  RequestMetrics request_metrics_{metrics_, options_.slo, options_.model.name};
  AuthMetrics auth_metrics_{metrics_};
  EdgeMetrics grpc_metrics_{metrics_, "grpc"};
  EdgeMetrics http_metrics_{metrics_, "http"};
  PlacementMetrics placement_metrics_{metrics_};
  OpenRequests open_;
  std::atomic<bool> draining_{false};
  std::unique_ptr<Fleet> fleet_;
  std::unique_ptr<RoleKeeper> roles_;  // null: no advice; the fleet's thread calls it
  std::unique_ptr<KeyRing> keys_;      // null: no keys are needed
  std::unique_ptr<InferenceCore> core_;
  std::unique_ptr<GrpcHandler> inference_;
  std::unique_ptr<HttpServer> grpc_;
  std::string endpoint_;  // of grpc_
  std::unique_ptr<OpenAiHandler> openai_;
  std::unique_ptr<ClusterReport> report_;
  std::unique_ptr<PageHandler> page_;  // null: it is off
  std::unique_ptr<HttpServer> http_;
  std::unique_ptr<grpc::Service> admin_service_;
  std::unique_ptr<RpcServer> admin_;  // null: it is off
  std::unique_ptr<MetricsServer> metrics_server_;
};

}  // namespace penstock
