#pragma once

#include <memory>
#include <optional>
#include <string>

#include "base/metrics/metrics.h"
#include "base/rpc/operator_gate.h"
#include "base/rpc/process_info.h"
#include "base/rpc/rpc_server.h"
#include "http/metrics/metrics_server.h"
#include "http/server/http_server.h"
#include "router/anthropic/handler.h"
#include "router/api/cors_handler.h"
#include "router/fleet/role_keeper.h"
#include "router/grpc/handler.h"
#include "router/kubernetes/kube_scaler.h"
#include "router/metrics/request_metrics.h"
#include "router/openai/handler.h"
#include "router/page/page_handler.h"
#include "router/picker/picker.h"
#include "router/picker/picker_server.h"
#include "router/scaling/scale_keeper.h"
#include "router/trace/span_exporter.h"

namespace penstock {

// Room router: puts the rooms below together: public ports, admin port, metrics, fleet and keys, in
// the order of construction and shutdown. It may not decide about requests itself.

struct RouterServerOptions {
  std::string listen = "127.0.0.1:0";
  std::string http_listen;                     // empty: HTTP is off
  std::string metrics_listen;                  // empty: metrics are off
  std::string admin_listen;                    // empty: the admin port is off
  std::string picker_listen;                   // empty: the endpoint picker is off
  std::string picker_names;                    // ip:port for gateways; empty: http_endpoint()
  bool picker_public_tls = false;              // `tls` for `picker_listen`, not fleet.cluster
  ProcessInfo process = {};                    // what Admin.Info reports
  std::string keys_file;                       // empty: authentication is off
  std::shared_ptr<TlsIdentity> tls = nullptr;  // for `listen`; nullptr: plaintext
  bool http_tls = false;                       // use `tls` for `http_listen` too
  ServedModel model;
  FleetOptions fleet;  // the server sets on_readiness, on_poll and metrics
  SessionLimits limits;
  SloTargets slo;
  std::optional<SpanExporterOptions> spans;  // nullopt: off; the server sets model and version
  uint32_t max_requests = 2048;
  Duration client_stall = std::chrono::seconds(30);
  uint32_t http_connections = 4096;
  std::optional<RoleKeeper::Options> roles = RoleKeeper::Options();  // nullopt: no role advice
  std::optional<ScaleKeeper::Options> scaling;                       // nullopt: no autoscaling
  KubeScalerOptions kubernetes;                                      // with scaling->act
  std::vector<std::string> cors_allow_origins = {};                  // CorsPolicy; empty: none
  bool page = true;                                    // serve the page at / of the HTTP port
  Duration request_limit = std::chrono::seconds(600);  // for a request over HTTP
};

// The router process: fleet, public ports, admin port, page and metrics. Health is SERVING while a
// request could be placed. Start, Drain and the destructor are for one thread; the rest for any.
class RouterServer {
 public:
  // Errors of Fleet::Create, KeyRing::Open and of the ports.
  static absl::StatusOr<std::unique_ptr<RouterServer>> Start(RouterServerOptions options);
  ~RouterServer();

  const std::string& endpoint() const { return endpoint_; }
  // Empty when HTTP is off.
  std::string http_endpoint() const { return http_ == nullptr ? "" : http_->endpoint(); }
  // Empty when the admin port is off.
  std::string admin_endpoint() const { return admin_ == nullptr ? "" : admin_->endpoint(); }
  // Empty when the endpoint picker is off.
  std::string picker_endpoint() const {
    return picker_port_ == nullptr ? "" : picker_port_->endpoint();
  }
  // Empty when metrics are off.
  std::string metrics_endpoint() const;
  Fleet& fleet() { return *fleet_; }
  uint32_t open_requests() const { return open_.count(); }

  // Sets health to NOT_SERVING, refuses new requests and waits for the open ones, which are
  // cancelled after `limit`. No request is open when it returns.
  void Drain(Duration limit);

 private:
  explicit RouterServer(RouterServerOptions options);
  absl::Status Start();
  // The options that both public ports share.
  HttpServerOptions PortOptions(const std::string& listen, const std::string& flag) const;
  absl::Status StartGrpc();
  absl::Status StartHttp();
  absl::Status StartAdmin();
  // Serves the endpoint picker; `api` is what the HTTP port serves.
  absl::Status StartPicker(HttpHandler& api);
  void SetServing(bool serving);
  void FinishClients(TimePoint deadline, bool patient);
  void AddGauges();
  absl::Status StartScaling();
  void OnPoll(TimePoint now);

  RouterServerOptions options_;
  const OperatorGate operators_{options_.fleet.cluster};
  SteadyClock clock_;
  MetricsRegistry metrics_;
  RequestMetrics request_metrics_{metrics_, options_.slo, options_.model.name};
  AuthMetrics auth_metrics_{metrics_};
  EdgeMetrics grpc_metrics_{metrics_, "grpc"};
  EdgeMetrics http_metrics_{metrics_, "http"};
  PlacementMetrics placement_metrics_{metrics_};
  SpanMetrics span_metrics_{metrics_};
  PickerMetrics picker_metrics_{metrics_};
  ScaleMetrics scale_metrics_{metrics_};
  KubeMetrics kube_metrics_{metrics_};
  OpenRequests open_;
  std::atomic<bool> draining_{false};
  std::unique_ptr<SpanExporter> spans_;  // nullptr: off
  std::unique_ptr<Fleet> fleet_;
  std::unique_ptr<RoleKeeper> roles_;       // nullptr: no role advice; the fleet's thread calls it
  std::unique_ptr<KubeScaler> kubernetes_;  // nullptr: autoscaling does not act
  std::unique_ptr<ScaleKeeper> scaling_;    // nullptr: off; the fleet's thread calls it
  std::unique_ptr<KeyRing> keys_;           // nullptr: authentication is off
  std::unique_ptr<InferenceCore> core_;
  std::unique_ptr<GrpcHandler> inference_;
  std::unique_ptr<HttpServer> grpc_;
  std::string endpoint_;  // grpc_'s host:port
  std::unique_ptr<OpenAiHandler> openai_;
  std::unique_ptr<AnthropicHandler> anthropic_;
  std::unique_ptr<CorsHandler> cors_;  // nullptr: off
  std::unique_ptr<ClusterReport> report_;
  std::unique_ptr<PageHandler> page_;  // nullptr: off
  std::unique_ptr<HttpServer> http_;
  std::unique_ptr<EndpointPicker> picker_;
  std::unique_ptr<PickerServer> picker_port_;  // nullptr: off
  std::unique_ptr<grpc::Service> admin_service_;
  std::unique_ptr<RpcServer> admin_;  // nullptr: off
  std::unique_ptr<MetricsServer> metrics_server_;
};

}  // namespace penstock
