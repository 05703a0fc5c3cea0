#include "router/router_server.h"

#include <grpcpp/impl/service_type.h>

#include "base/log/log.h"
#include "base/rpc/callback_threads.h"
#include "base/rpc/process_info.h"
#include "base/tls/tls_metrics.h"
#include "router/admin_service.h"
#include "router/embeddings/route.h"
#include "router/grpc/frame.h"
#include "router/responses/route.h"

namespace penstock {
namespace {

constexpr char kServiceName[] = "penstock.v1.Inference";
constexpr uint32_t kSpareRequests = 64;  // beyond max_requests: health, and requests to refuse
constexpr Duration kCallsEnd = std::chrono::seconds(10);

}  // namespace

absl::StatusOr<std::unique_ptr<RouterServer>> RouterServer::Start(RouterServerOptions options) {
  std::unique_ptr<RouterServer> server(new RouterServer(std::move(options)));
  RETURN_IF_ERROR(server->Start());
  return server;
}

RouterServer::RouterServer(RouterServerOptions options)
    : options_(std::move(options)), open_(options_.max_requests) {}

absl::Status RouterServer::Start() {
  KeepCallbackThreads();  // for calls to workers
  FleetOptions fleet = options_.fleet;
  fleet.metrics = &placement_metrics_;
  fleet.on_readiness = [this](bool ready) {
    ready ? LogInfo("ready", "requests can be placed")
          : LogInfo("not_ready", "not serving: no ready prefill/decode pair");
    SetServing(ready);
  };
  fleet.on_poll = [this](TimePoint now) { OnPoll(now); };
  // The fleet starts to watch workers in Run, when everything that it calls exists.
  ASSIGN_OR_RETURN(fleet_, Fleet::Create(std::move(fleet)));
  if (options_.roles) {
    roles_ = std::make_unique<RoleKeeper>(fleet_->table(), metrics_, *options_.roles);
  }
  RETURN_IF_ERROR(StartScaling());
  if (options_.spans) {
    SpanExporterOptions spans = *options_.spans;
    spans.model = options_.model.name;
    spans.version = ProcessVersion();
    ASSIGN_OR_RETURN(spans_, SpanExporter::Start(std::move(spans), clock_, span_metrics_));
  }
  core_ = std::make_unique<InferenceCore>(InferenceCoreArgs{.model = options_.model,
                                                            .fleet = *fleet_,
                                                            .open = open_,
                                                            .clock = clock_,
                                                            .limits = options_.limits,
                                                            .metrics = request_metrics_,
                                                            .spans = spans_.get()});
  if (!options_.keys_file.empty()) {
    ASSIGN_OR_RETURN(keys_, KeyRing::Open(options_.keys_file, auth_metrics_, clock_));
  }
  RETURN_IF_ERROR(StartGrpc());
  report_ = std::make_unique<ClusterReport>(ClusterReportArgs{.model = options_.model,
                                                              .fleet = *fleet_,
                                                              .open = open_,
                                                              .metrics = request_metrics_,
                                                              .clock = clock_,
                                                              .roles = roles_.get(),
                                                              .version = ProcessVersion(),
                                                              .keys = keys_ != nullptr});
  RETURN_IF_ERROR(StartHttp());
  RETURN_IF_ERROR(StartAdmin());
  AddProcessMetrics(metrics_, "router");
  AddCertificateMetric(metrics_, "public", options_.tls);
  AddCertificateMetric(metrics_, "cluster", options_.fleet.cluster);
  AddGauges();
  AddPrefixViewMetrics(metrics_, fleet_->table().prefixes());
  if (!options_.metrics_listen.empty()) {
    ASSIGN_OR_RETURN(metrics_server_, MetricsServer::Start(options_.metrics_listen, metrics_));
  }
  fleet_->Run();
  return absl::OkStatus();
}

// The part that changes replicas also changes roles, so that the two cannot act against each other:
// with both flags at `act`, the role keeper only carries out what autoscaling decides.
absl::Status RouterServer::StartScaling() {
  if (!options_.scaling) return absl::OkStatus();
  ScaleKeeper::Options scaling = *options_.scaling;
  if (scaling.act) {
    ASSIGN_OR_RETURN(kubernetes_, KubeScaler::Start(options_.kubernetes, clock_, kube_metrics_));
    if (scaling.scale.may_turn) {
      scaling.turn = [this](v1::WorkerState::Role to, bool home) { roles_->Turn(to, home); };
    }
  }
  scaling_ = std::make_unique<ScaleKeeper>(fleet_->table(), scale_metrics_, kubernetes_.get(),
                                           std::move(scaling));
  return absl::OkStatus();
}

void RouterServer::OnPoll(TimePoint now) {
  if (roles_ != nullptr) roles_->Observe(now);
  if (scaling_ != nullptr) scaling_->Observe(now);
}

HttpServerOptions RouterServer::PortOptions(const std::string& listen,
                                            const std::string& flag) const {
  HttpServerOptions port{.listen = listen,
                         .listen_flag = flag,
                         .max_connections = options_.http_connections,
                         .sharers = options_.http_listen.empty() ? 1u : 2u};
  port.times.stall = options_.client_stall;
  // A gateway may send all requests on one connection. The limits of streams are above
  // max_requests, so that excess requests get the error of max_requests.
  const uint32_t max = options_.max_requests + kSpareRequests;
  port.http2.streams = std::max(port.http2.streams, max);
  port.max_queued = std::max(port.max_queued, max);
  return port;
}

absl::Status RouterServer::StartGrpc() {
  // Reflection needs no key, so it is off when keys are configured.
  inference_ = std::make_unique<GrpcHandler>(
      GrpcHandlerArgs{.core = *core_, .keys = keys_.get(), .reflection = keys_ == nullptr});
  for (const char* service : {"", kServiceName}) inference_->SetServing(service, false);
  inference_->SetServing("live", true);  // for liveness probes: does not depend on workers
  HttpServerOptions port = PortOptions(options_.listen, "--listen");
  port.tls = options_.tls;
  port.protocols = Protocols::kHttp2;  // gRPC needs trailers
  port.limits.body_bytes = kFrameHeadBytes + kGrpcMessageBytesMax;
  ASSIGN_OR_RETURN(grpc_, HttpServer::Start(port, *inference_, grpc_metrics_, clock_));
  endpoint_ = grpc_->endpoint();
  return absl::OkStatus();
}

absl::Status RouterServer::StartAdmin() {
  if (options_.admin_listen.empty()) return absl::OkStatus();
  admin_service_ =
      MakeAdminService({.process = options_.process,
                        .table = fleet_->table(),
                        .operators = operators_,
                        .roles = roles_.get(),
                        .scaling = scaling_.get(),
                        .picture = [this] { return JsonText(report_->ForOperator()); }});
  ASSIGN_OR_RETURN(admin_, RpcServer::Start({.listen = options_.admin_listen,
                                             .services = {admin_service_.get()},
                                             .tls = options_.fleet.cluster}));
  admin_->SetServing("", true);
  return absl::OkStatus();
}

absl::Status RouterServer::StartHttp() {
  if (options_.http_listen.empty()) return absl::OkStatus();
  openai_ = std::make_unique<OpenAiHandler>(
      OpenAiHandlerArgs{.core = *core_,
                        .keys = keys_.get(),
                        .version = ProcessVersion(),
                        .request_limit = options_.request_limit,
                        .more_routes = {ResponsesRoute(), EmbeddingsRoute()}});
  anthropic_ = std::make_unique<AnthropicHandler>(
      AnthropicHandlerArgs{.core = *core_,
                           .keys = keys_.get(),
                           .request_limit = options_.request_limit,
                           .next = *openai_});
  HttpHandler* handler = anthropic_.get();
  if (!options_.cors_allow_origins.empty()) {
    ASSIGN_OR_RETURN(CorsPolicy policy, CorsPolicy::Parse(options_.cors_allow_origins));
    cors_ = std::make_unique<CorsHandler>(std::move(policy), *handler);
    handler = cors_.get();
  }
  if (options_.page) {
    page_ = std::make_unique<PageHandler>(
        PageHandlerArgs{.api = *handler, .report = *report_, .keys = keys_.get()});
    handler = page_.get();
  }
  HttpServerOptions port = PortOptions(options_.http_listen, "--http_listen");
  if (options_.http_tls) port.tls = options_.tls;
  ASSIGN_OR_RETURN(http_, HttpServer::Start(port, *handler, http_metrics_, clock_));
  return StartPicker(*handler);
}

absl::Status RouterServer::StartPicker(HttpHandler& api) {
  if (options_.picker_listen.empty()) return absl::OkStatus();
  const std::string& names =
      options_.picker_names.empty() ? http_->endpoint() : options_.picker_names;
  picker_ = std::make_unique<EndpointPicker>(EndpointPickerArgs{.core = *core_,
                                                                .api = api,
                                                                .keys = keys_.get(),
                                                                .endpoint = names,
                                                                .metrics = picker_metrics_});
  PickerServerOptions port{
      .listen = options_.picker_listen,
      .tls = options_.picker_public_tls ? options_.tls : options_.fleet.cluster,
      .endpoint = names,
      .streams_max = options_.max_requests + kSpareRequests};
  port.stream_max = options_.request_limit + kCallsEnd;
  ASSIGN_OR_RETURN(picker_port_, PickerServer::Start(port, *picker_, picker_metrics_, clock_));
  return absl::OkStatus();
}

void RouterServer::AddGauges() {
  auto gauges = std::make_shared<RouterGauges>(metrics_);
  metrics_.BeforeScrape([this, gauges] {
    gauges->open.Set(open_.count());
    gauges->waiting.Set(static_cast<double>(fleet_->order().waiting()));
    const std::map<WorkerKind, int> counts = fleet_->table().Counts();
    for (const auto& [kind, gauge] : gauges->workers) {
      const auto count = counts.find(kind);
      gauge->Set(count == counts.end() ? 0 : count->second);
    }
  });
}

std::string RouterServer::metrics_endpoint() const {
  return metrics_server_ == nullptr ? "" : metrics_server_->endpoint();
}

RouterServer::~RouterServer() {
  metrics_server_.reset();  // Scrapes and operators' calls read the members below.
  admin_.reset();
  if (grpc_ != nullptr) Drain(Duration::zero());
  fleet_.reset();  // Before the members that its callbacks use.
}

void RouterServer::SetServing(bool serving) {
  if (draining_) serving = false;
  for (const char* service : {"", kServiceName}) inference_->SetServing(service, serving);
  if (picker_port_ != nullptr) picker_port_->SetServing(serving);
}

void RouterServer::Drain(Duration limit) {
  if (draining_.exchange(true)) return;
  Log(LogLevel::kInfo, "draining", {{"running", open_.count()}});
  SetServing(false);
  if (openai_ != nullptr) openai_->Drain();
  const TimePoint deadline = clock_.Now() + limit;
  const bool all_ended = open_.CloseAndWait(limit);
  if (!all_ended && limit > Duration::zero()) {
    LogWarning("requests_cancelled", "{} requests did not end within --drain_s", open_.count());
  }
  inference_->EndStandingStreams();
  FinishClients(deadline, /*patient=*/all_ended && limit > Duration::zero());
  // Gateways get the rest of their answers through it, so it ends last.
  if (picker_port_ != nullptr) {
    picker_port_->Stop(std::max(deadline - clock_.Now(), Duration::zero()));
  }
  // Calls to workers end shortly after the clients' calls, and use the members that are destroyed
  // next.
  if (!open_.CloseAndWait(kCallsEnd)) {
    LogError("worker_calls_open", "calls to workers did not end within {} s",
             std::chrono::duration_cast<std::chrono::seconds>(kCallsEnd).count());
  }
}

// Sends the rest of the answers until `deadline`, then closes both ports. Requests that are still
// open are cancelled as if their clients had left; the last ones may still be in a callback when
// this returns. `patient`: log when clients did not read their answers in time.
void RouterServer::FinishClients(TimePoint deadline, bool patient) {
  std::vector<std::unique_ptr<HttpServer>> ports;
  ports.push_back(std::move(grpc_));
  if (http_ != nullptr) ports.push_back(std::move(http_));
  for (const auto& port : ports) port->Finish(Duration::zero());  // starts to finish both
  bool all_have_read = true;
  for (const auto& port : ports) {
    all_have_read &= port->Finish(std::max(deadline - clock_.Now(), Duration::zero()));
  }
  if (!all_have_read && patient) {
    LogWarning("clients_disconnected", "clients did not read their answers within --drain_s");
  }
}

}  // namespace penstock
