// The router: decides which workers serve each prompt, and owns the client's stream.
#include <cstdio>
#include <tuple>

#include "base/config/config.h"
#include "base/lifecycle.h"
#include "base/log/log.h"
#include "base/rpc/grpc_log.h"
#include "proto/config.pb.h"
#include "router/picker/gateway_message.h"
#include "router/router_server.h"

namespace penstock {
namespace {

ScaleKeeper::Options ScalingOf(const v1::RouterConfig& config) {
  ScaleKeeper::Options options;
  options.act = config.autoscale() == "act";
  options.targets = {.ttft_ms = static_cast<double>(config.ttft_target_ms()),
                     .tpot_ms = static_cast<double>(config.tpot_target_ms())};
  options.scale.policy.start_up = std::chrono::seconds(config.worker_start_up_s());
  options.scale.prefill = {config.prefill_replicas_min(), config.prefill_replicas_max()};
  options.scale.decode = {config.decode_replicas_min(), config.decode_replicas_max()};
  options.scale.may_turn = options.act && config.role_advice() == "act";
  options.scale = SpedUp(options.scale, config.autoscale_speed());
  return options;
}

KubeScalerOptions KubernetesOf(const v1::RouterConfig& config) {
  return {.api = config.kubernetes_api(),
          .account = config.kubernetes_account(),
          .lease = config.autoscale_lease(),
          .prefill_deployment = config.prefill_deployment(),
          .decode_deployment = config.decode_deployment(),
          .id = config.router_id()};
}

// Limits that contradict each other.
absl::Status CheckScaling(const v1::RouterConfig& config) {
  const std::tuple<const char*, uint32_t, uint32_t> roles[] = {
      {"prefill", config.prefill_replicas_min(), config.prefill_replicas_max()},
      {"decode", config.decode_replicas_min(), config.decode_replicas_max()}};
  for (const auto& [role, min, max] : roles) {
    if (config.autoscale() == "off" || min <= max) continue;
    return InvalidArgument("{}_replicas_min={} is above {}_replicas_max={}", role, min, role, max);
  }
  return absl::OkStatus();
}

RouterServerOptions OptionsOf(const v1::RouterConfig& config, ServedModel model) {
  RouterServerOptions options;
  options.listen = config.listen();
  options.model = std::move(model);
  options.http_listen = config.http_listen();
  options.http_connections = config.http_connections();
  options.request_limit = std::chrono::seconds(config.request_limit_s());
  options.page = config.page() == "on";
  options.cors_allow_origins = {config.cors_allow_origins().begin(),
                                config.cors_allow_origins().end()};
  options.slo = {.first_token = std::chrono::milliseconds(config.ttft_target_ms()),
                 .per_token = std::chrono::milliseconds(config.tpot_target_ms())};
  if (!config.otlp_endpoint().empty()) {
    options.spans = SpanExporterOptions{.endpoint = config.otlp_endpoint(),
                                        .sampled_percent = config.otlp_sample_percent()};
  }
  options.roles.reset();
  if (config.role_advice() != "off") {
    options.roles.emplace();
    options.roles->act = config.role_advice() == "act";
    options.roles->targets = {.ttft_ms = static_cast<double>(config.ttft_target_ms()),
                              .tpot_ms = static_cast<double>(config.tpot_target_ms())};
  }
  if (config.autoscale() != "off") {
    options.scaling = ScalingOf(config);
    options.kubernetes = KubernetesOf(config);
    // One decides: with both at `act`, autoscaling changes roles, too.
    if (options.scaling->scale.may_turn) options.roles->act = false;
  }
  options.metrics_listen = config.metrics_listen();
  options.keys_file = config.keys_file();
  options.max_requests = config.max_requests();
  options.limits.max_replans = config.max_replans();
  options.limits.queue_wait = std::chrono::milliseconds(config.queue_wait_ms());
  options.limits.report_wait = std::chrono::milliseconds(config.report_wait_ms());
  options.fleet.queued_max = config.max_queued();
  options.fleet.peer_reads = {.on = config.peer_reads() == "on",
                              .patience_least_ms = static_cast<double>(config.peer_patience_ms())};
  DiscoveryConfig& discovery = options.fleet.discovery;
  discovery.workers = {config.workers().begin(), config.workers().end()};
  discovery.file = config.workers_file();
  discovery.dns = {config.workers_dns().begin(), config.workers_dns().end()};
  return options;
}

// The content of the ready file: the gRPC endpoint, then "name=endpoint" lines.
std::string ReadyText(const RouterServer& server) {
  std::string text = server.endpoint();
  if (!server.admin_endpoint().empty()) text += "\nadmin=" + server.admin_endpoint();
  if (!server.metrics_endpoint().empty()) text += "\nmetrics=" + server.metrics_endpoint();
  if (!server.http_endpoint().empty()) text += "\nhttp=" + server.http_endpoint();
  if (!server.picker_endpoint().empty()) text += "\npicker=" + server.picker_endpoint();
  return text;
}

// Refuses addresses that other machines can reach without authentication. API keys guard both
// public ports, a CA of clients the ports that ask for certificates. Nothing guards metrics.
absl::Status CheckAddresses(const v1::RouterConfig& config) {
  const bool guarded = config.insecure() || !config.keys_file().empty();
  RETURN_IF_ERROR(CheckListenAddress(config.listen(), guarded || !config.tls_client_ca().empty()));
  if (!config.http_listen().empty()) {
    const bool asks_callers = config.http_tls() && !config.tls_client_ca().empty();
    RETURN_IF_ERROR(
        CheckListenAddress(config.http_listen(), guarded || asks_callers, "http_listen"));
  }
  if (!config.metrics_listen().empty()) {
    RETURN_IF_ERROR(
        CheckListenAddress(config.metrics_listen(), config.insecure(), "metrics_listen"));
  }
  return absl::OkStatus();
}

// The admin port needs the cluster's certificates or a loopback address, even with --insecure.
absl::Status CheckAdminAddress(const v1::RouterConfig& config) {
  if (config.admin_listen().empty() || !config.cluster_ca().empty()) return absl::OkStatus();
  if (CheckListenAddress(config.admin_listen(), false).ok()) return absl::OkStatus();
  const absl::Status parsed = ParseHostPort(config.admin_listen()).status();
  if (!parsed.ok()) return Annotate(parsed, "admin_listen");
  return FailedPrecondition(
      "admin_listen={} can be reached from other machines: listen on 127.0.0.1, or ask operators "
      "for certificates with cluster_ca, cluster_cert and cluster_key",
      config.admin_listen());
}

// The endpoint picker's port asks for certificates, or refuses callers without an API key as the
// HTTP port does; and gateways need an address for the HTTP port that they can reach.
absl::Status CheckPicker(const v1::RouterConfig& config) {
  if (config.endpoint_picker_listen().empty()) return absl::OkStatus();
  const std::string& asked_ca =
      config.endpoint_picker_tls() == "public" ? config.tls_client_ca() : config.cluster_ca();
  const bool guarded = config.insecure() || !config.keys_file().empty() || !asked_ca.empty();
  RETURN_IF_ERROR(
      CheckListenAddress(config.endpoint_picker_listen(), guarded, "endpoint_picker_listen"));
  if (config.http_listen().empty()) {
    return FailedPrecondition(
        "endpoint_picker_listen needs http_listen: gateways send requests there");
  }
  const bool given = !config.endpoint_picker_names().empty();
  return given ? NamedEndpoint(config.endpoint_picker_names(), "endpoint_picker_names").status()
               : NamedEndpoint(config.http_listen(), "http_listen").status();
}

absl::Status CheckHttpTls(const v1::RouterConfig& config) {
  if (!config.http_tls() || !config.tls_cert().empty()) return absl::OkStatus();
  return FailedPrecondition("http_tls needs a certificate: name it with tls_cert and tls_key");
}

void LogOutputSupport(const OutputSupport& output) {
  Log(LogLevel::kInfo, "tool_format_chosen",
      {{"tools", output.calls == nullptr ? "refused" : output.calls->name},
       {"reasoning", output.reasoning == nullptr ? "none" : output.reasoning->begin},
       {"reason", output.why_no_calls}});
}

absl::Status Serve(const v1::RouterConfig& config) {
  RETURN_IF_ERROR(CheckAdminAddress(config));
  RETURN_IF_ERROR(CheckAddresses(config));
  RETURN_IF_ERROR(CheckHttpTls(config));
  RETURN_IF_ERROR(CheckPicker(config));
  RETURN_IF_ERROR(CheckScaling(config));
  ASSIGN_OR_RETURN(auto tls, TlsIdentity::Open(PublicTlsOf(config), TlsUse::kServer));
  ASSIGN_OR_RETURN(auto cluster, TlsIdentity::Open(ClusterTlsOf(config), TlsUse::kMember));
  ASSIGN_OR_RETURN(
      ServedModel model,
      LoadServedModel({.directory = config.model(),
                       .name = config.model_name(),
                       .aliases = {config.model_alias().begin(), config.model_alias().end()},
                       .max_model_len = config.max_model_len(),
                       .tool_format = config.tool_format()}));
  LogOutputSupport(model.output);
  RouterServerOptions options = OptionsOf(config, std::move(model));
  options.admin_listen = config.admin_listen();
  options.picker_listen = config.endpoint_picker_listen();
  if (!config.endpoint_picker_names().empty()) {
    ASSIGN_OR_RETURN(options.picker_names,
                     NamedEndpoint(config.endpoint_picker_names(), "endpoint_picker_names"));
  }
  options.picker_public_tls = config.endpoint_picker_tls() == "public";
  options.process = ProcessInfoOf("penstock-router", config);
  options.tls = std::move(tls);
  options.http_tls = config.http_tls();
  options.fleet.cluster = std::move(cluster);
  ASSIGN_OR_RETURN(auto server, RouterServer::Start(std::move(options)));
  RETURN_IF_ERROR(WriteReadyFile(config.ready_file(), ReadyText(*server)));
  Log(LogLevel::kInfo, "serving",
      {{"endpoint", server->endpoint()},
       {"http", server->http_endpoint()},
       {"metrics", server->metrics_endpoint()},
       {"picker", server->picker_endpoint()}});
  ServeUntilSignal([&] { server->Drain(std::chrono::seconds(config.drain_s())); });
  if (!config.ready_file().empty()) std::remove(config.ready_file().c_str());
  return absl::OkStatus();
}

}  // namespace
}  // namespace penstock

int main(int argc, char** argv) {
  penstock::BlockShutdownSignals();
  const auto config = penstock::LoadConfigOrExit<penstock::v1::RouterConfig>(
      argc, argv,
      {.name = "penstock-router", .summary = "places prompts on workers and streams the answers"});
  penstock::StartLogging({.component = "router",
                          .min = penstock::ParseLogLevel(config.log_level()),
                          .format = penstock::ParseLogFormat(config.log_format())});
  penstock::RedirectGrpcLog();
  const absl::Status status = penstock::Serve(config);
  if (!status.ok()) penstock::LogError("process_failed", "{}", penstock::Message(status));
  if (status.ok()) penstock::Log(penstock::LogLevel::kInfo, "stopped");
  return static_cast<int>(penstock::ExitCodeFor(status));
}
