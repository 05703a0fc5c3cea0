#include "router/router_server.h"

#include <grpcpp/impl/service_type.h>

#include "base/log.h"
#include "base/process_info.h"
#include "base/tls_metrics.h"
#include "router/admin_service.h"

namespace penstock {
namespace {

constexpr char kServiceName[] = "penstock.v1.Inference";
constexpr int kMaxRequestBytes = 4 << 20;  // as HttpLimits has it, too
// Watches of health and reflection stay open as long as their clients like.
constexpr Duration kGrace = std::chrono::milliseconds(200);
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
  FleetOptions fleet = options_.fleet;
  fleet.metrics = &placement_metrics_;
  fleet.on_readiness = [this](bool ready) {
    ready ? LogInfo("ready", "requests can be placed")
          : LogInfo("not_ready", "no pair of workers is ready for requests");
    SetServing(ready);
  };
  if (options_.roles) fleet.on_poll = [this](TimePoint now) { roles_->Observe(now); };
  // It watches once the server is there to be told of readiness.
  ASSIGN_OR_RETURN(fleet_, Fleet::Create(std::move(fleet)));
  if (options_.roles) {
    roles_ = std::make_unique<RoleKeeper>(fleet_->table(), metrics_, *options_.roles);
  }
  core_ = std::make_unique<InferenceCore>(InferenceCoreArgs{.model = options_.model,
                                                            .fleet = *fleet_,
                                                            .open = open_,
                                                            .clock = clock_,
                                                            .limits = options_.limits,
                                                            .metrics = request_metrics_});
  if (!options_.keys_file.empty()) {
    ASSIGN_OR_RETURN(keys_, KeyRing::Open(options_.keys_file, auth_metrics_, clock_));
  }
  service_ = MakeInferenceService(
      {.core = *core_, .keys = keys_.get(), .client_stall = options_.client_stall});
  ASSIGN_OR_RETURN(rpc_, RpcServer::Start({.listen = options_.listen,
                                           .services = {service_.get()},
                                           .message_bytes_max = kMaxRequestBytes,
                                           // Reflection asks nobody for a key.
                                           .reflection = keys_ == nullptr,
                                           .tls = options_.tls}));
  rpc_->SetServing(kServiceName, false);
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
  rpc_->SetServing("live", true);  // What a liveness probe asks for: no worker is needed for it.
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

absl::Status RouterServer::StartAdmin() {
  if (options_.admin_listen.empty()) return absl::OkStatus();
  admin_service_ =
      MakeAdminService({.process = options_.process,
                        .table = fleet_->table(),
                        .roles = roles_.get(),
                        .picture = [this] { return JsonText(report_->ForOperator()); }});
  ASSIGN_OR_RETURN(admin_, RpcServer::Start({.listen = options_.admin_listen,
                                             .services = {admin_service_.get()},
                                             .tls = options_.fleet.cluster}));
  admin_->SetServing("", true);
  return absl::OkStatus();
}

absl::Status RouterServer::StartHttp() {
  if (options_.http_listen.empty()) return absl::OkStatus();
  openai_ =
      std::make_unique<OpenAiHandler>(OpenAiHandlerArgs{.core = *core_,
                                                        .keys = keys_.get(),
                                                        .version = ProcessVersion(),
                                                        .request_limit = options_.request_limit});
  HttpServerOptions http{.listen = options_.http_listen,
                         .max_connections = options_.http_connections};
  http.times.stall = options_.client_stall;
  if (options_.page) {
    page_ = std::make_unique<PageHandler>(
        PageHandlerArgs{.api = *openai_, .report = *report_, .keys = keys_.get()});
  }
  HttpHandler& handler = page_ == nullptr ? static_cast<HttpHandler&>(*openai_) : *page_;
  ASSIGN_OR_RETURN(http_, HttpServer::Start(http, handler, http_metrics_, clock_));
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
  metrics_server_.reset();  // It reads what goes away here, and so do operators.
  admin_.reset();
  if (rpc_ != nullptr) Drain(Duration::zero());
  fleet_.reset();  // Before the server that it tells of readiness.
}

void RouterServer::SetServing(bool serving) {
  if (draining_) serving = false;
  rpc_->SetServing("", serving);
  rpc_->SetServing(kServiceName, serving);
}

void RouterServer::Drain(Duration limit) {
  if (draining_.exchange(true)) return;
  Log(LogLevel::kInfo, "draining", {{"running", open_.count()}});
  SetServing(false);
  if (openai_ != nullptr) openai_->Drain();
  const TimePoint deadline = clock_.Now() + limit;
  const bool all_ended = open_.CloseAndWait(limit);
  if (!all_ended && limit > Duration::zero()) {
    LogWarning("requests_cut_off", "{} requests are still open and are cancelled", open_.count());
  }
  // What was answered is perhaps not sent yet.
  const Duration left = std::max(deadline - clock_.Now(), Duration::zero());
  if (http_ != nullptr && !http_->Finish(left) && all_ended && limit > Duration::zero()) {
    LogWarning("clients_cut_off", "clients that have not read their answers are cut off");
  }
  // Requests that came by HTTP are told that their clients have left; the last of them may be in a
  // callback for a moment yet.
  http_.reset();
  rpc_->Stop(kGrace);
  // Calls to workers outlive the clients' for a moment, and use what goes away next.
  if (!open_.CloseAndWait(kCallsEnd)) {
    LogError("worker_calls_open", "calls to workers have not ended");
  }
}

}  // namespace penstock
