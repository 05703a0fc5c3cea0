#include "worker/runtime/worker_shell.h"

#include <utility>

#include "base/lifecycle.h"
#include "base/log/log.h"
#include "base/tls/tls_metrics.h"
#include "proto/names.h"
#include "worker/runtime/worker_identity.h"
#include "worker/runtime/worker_metrics.h"
#include "worker/runtime/worker_role.h"

namespace penstock {
namespace {

// What a liveness probe asks for; "" also says no while the worker drains.
constexpr char kLiveService[] = "live";

}  // namespace

absl::StatusOr<std::unique_ptr<WorkerShell>> WorkerShell::Open(Options options) {
  std::unique_ptr<WorkerShell> shell(new WorkerShell(std::move(options)));
  ASSIGN_OR_RETURN(shell->cluster_, TlsIdentity::Open(shell->options_.cluster, TlsUse::kMember));
  ASSIGN_OR_RETURN(shell->host_, ModelHost::Open(shell->options_.model));
  AddProcessMetrics(shell->metrics_, std::string(RoleName(shell->options_.role)));
  AddCertificateMetric(shell->metrics_, "cluster", shell->cluster_);
  return shell;
}

WorkerShell::~WorkerShell() { Stop(); }

v1::WorkerState WorkerShell::State() const {
  v1::WorkerState state;
  state.set_phase(v1::WorkerState::STARTING);
  if (!ready_) return state;
  state = described_;
  if (draining()) state.set_phase(v1::WorkerState::DRAINING);
  if (stalled_) state.set_phase(v1::WorkerState::UNHEALTHY);
  SetPoolLoad(*host_->pool, &state);
  served_.describe(&state);
  return state;
}

absl::Status WorkerShell::Serve(std::vector<grpc::Service*> services, Served served) {
  served_ = std::move(served);
  status_ = std::make_unique<StatusService>([this] { return State(); }, served_.subscribe);
  services.push_back(status_->service());
  admin_ = std::make_unique<WorkerAdmin>(
      options_.process, [this](bool draining) { return SetDraining(draining); }, served_.turn);
  services.push_back(admin_->service());
  ASSIGN_OR_RETURN(
      server_, RpcServer::Start(
                   {.listen = options_.listen, .services = std::move(services), .tls = cluster_}));
  described_ = DescribeWorker(*host_);
  described_.set_worker_id(
      WorkerId(options_.worker_id, std::string(RoleName(options_.role)), server_->endpoint()));
  absl::Status shown = StartMetrics();
  if (!shown.ok()) {
    Stop();
    return shown;
  }
  ready_ = true;
  ShowHealth();
  watchdog_ = std::make_unique<Watchdog>(served_.beats, options_.stall,
                                         [this](bool stalled) { OnStall(stalled); });
  Log(LogLevel::kInfo, "serving",
      {{"endpoint", endpoint()},
       {"metrics", described_.metrics_endpoint()},
       {"worker", described_.worker_id()},
       {"blocks", host_->pool->blocks_total()},
       {"block_tokens", host_->layout.block_tokens},
       {"context", host_->runner->max_position()}});
  return absl::OkStatus();
}

absl::Status WorkerShell::StartMetrics() {
  AddWorkerMetrics(metrics_,
                   {.model_name = host_->name,
                    .block_bytes = host_->layout.BlockStride(),
                    .block_tokens = host_->layout.block_tokens,
                    .blocks = host_->pool->blocks_total(),
                    .beats = served_.beats},
                   [this] { return State(); });
  if (options_.metrics_listen.empty()) return absl::OkStatus();
  ASSIGN_OR_RETURN(metrics_server_, MetricsServer::Start(options_.metrics_listen, metrics_));
  described_.set_metrics_endpoint(metrics_server_->endpoint());
  return absl::OkStatus();
}

void WorkerShell::BeginDrain() {
  stopping_ = true;
  if (server_ != nullptr) ShowHealth();
}

absl::Status WorkerShell::SetDraining(bool draining) {
  if (stopping_) return FailedPrecondition("this process is stopping");
  if (asked_to_drain_.exchange(draining) == draining) return absl::OkStatus();
  draining ? LogInfo("drain_asked", "an operator takes this worker out of service")
           : LogInfo("drain_ended", "an operator takes this worker into service again");
  ShowHealth();
  return absl::OkStatus();
}

void WorkerShell::OnTurning(bool turning) {
  turning_ = turning;
  ShowHealth();
}

void WorkerShell::ShowHealth() {
  MutexLock lock(health_mutex_);
  server_->SetServing("", ready_ && !draining() && !stalled_);
  server_->SetServing(kLiveService, !stalled_);
}

void WorkerShell::OnStall(bool stalled) {
  stalled_ = stalled;
  ShowHealth();
  if (stalled) {
    LogError("engine_stalled", "no step for {} ms: unhealthy until there is one (--stall_ms)",
             options_.stall.count() / 1'000'000);
  } else {
    LogWarning("engine_moves", "healthy again");
  }
}

void WorkerShell::StopWatches() {
  watchdog_.reset();  // The engine may stop now.
  if (status_ != nullptr) status_->Stop();
}

void WorkerShell::Stop() {
  metrics_server_.reset();
  StopWatches();
  if (server_ != nullptr) server_->Stop(std::chrono::seconds(1));
}

}  // namespace penstock
