#include "worker/runtime/worker_runtime.h"

#include <algorithm>
#include <utility>

#include "base/log/log.h"
#include "base/tls/tls_metrics.h"
#include "proto/names.h"
#include "worker/model/draft_host.h"
#include "worker/model/expert_metrics.h"
#include "worker/model/paging_metrics.h"
#include "worker/runtime/drain.h"
#include "worker/runtime/worker_identity.h"
#include "worker/runtime/worker_metrics.h"

namespace penstock {
namespace {

void LogLoaded(const ModelHost::Options& options, const ModelStart& start, Duration took) {
  const double gigabytes = static_cast<double>(start.weight_bytes) / 1e9;
  Log(LogLevel::kInfo, "model_loaded",
      {{"model", options.model},
       {"device", options.device},
       {"seconds", std::chrono::duration<double>(took).count()},
       {"check_seconds", start.check_s},
       {"load_seconds", start.load_s},
       {"gigabytes", gigabytes},
       {"gb_per_s", gigabytes / start.load_s}});
}

}  // namespace

absl::StatusOr<std::unique_ptr<WorkerRuntime>> WorkerRuntime::Open(WorkerRuntimeOptions options) {
  std::unique_ptr<WorkerRuntime> runtime(new WorkerRuntime(std::move(options)));
  RETURN_IF_ERROR(runtime->OpenParts());
  return runtime;
}

absl::Status WorkerRuntime::OpenParts() {
  ASSIGN_OR_RETURN(cluster_, TlsIdentity::Open(options_.cluster, TlsUse::kMember));
  operators_ = std::make_unique<OperatorGate>(cluster_);
  RETURN_IF_ERROR(OpenModels());
  AddProcessMetrics(metrics_, std::string(RoleName(options_.first_role)));
  AddExpertMetrics(metrics_, host_->weights.expert_cache.get());
  AddPagingMetrics(metrics_, host_->pager.get());
  AddCertificateMetric(metrics_, "cluster", cluster_);
  watermark_ = std::max<int64_t>(1, host_->pool->blocks_total() / 100);
  grammars_ = std::make_unique<GrammarHost>(
      GrammarHost::Options{.model = options_.model.model,
                           .logits_width = static_cast<uint32_t>(host_->runner->vocab())},
      metrics_);
  KvCacheManager::Options cache = options_.cache;
  cache.model_fingerprint = host_->fingerprint;
  cache.kv_format = KvPageFormatName(host_->layout.format());
  ASSIGN_OR_RETURN(cache_, KvCacheManager::Create(*host_->pool, clock_, std::move(cache)));
  ASSIGN_OR_RETURN(lossy_, LossyKv::Open(options_.lossy_kv, options_.model.model, host_->layout));
  const bool spans = host_->layout.span > 0;  // which count positions, and not slots
  ASSIGN_OR_RETURN(evictions_,
                   KvEvictions::Open(options_.kv_eviction,
                                     {.runner = !spans && host_->runner->eviction_attention(),
                                      .step_tokens = options_.chunk_tokens}));
  ASSIGN_OR_RETURN(selections_, KvSelections::Open(options_.kv_selection,
                                                   !spans && host_->runner->selects_pages()));
  ASSIGN_OR_RETURN(blends_, KvBlends::Open(options_.kv_blend_deviation,
                                           {.runner = !spans && host_->runner->key_rotations(),
                                            .step_tokens = options_.chunk_tokens,
                                            .cache = cache_->keeps_blocks()}));
  OpenReceiver();
  RETURN_IF_ERROR(OpenWire());
  RETURN_IF_ERROR(StartSender());
  RETURN_IF_ERROR(OpenTiers());
  OpenServices();
  return absl::OkStatus();
}

absl::Status WorkerRuntime::OpenModels() {
  const bool drafts = !options_.draft.model.empty(), on_cpu = options_.model.device == "cpu";
  if (drafts) RETURN_IF_ERROR(CheckDraftModel(options_.draft, options_.model));
  // The model's pool takes what the draft model leaves of a GPU's memory.
  if (drafts && !on_cpu) RETURN_IF_ERROR(OpenDraftModel(nullptr));
  const TimePoint begin = clock_.Now();
  ASSIGN_OR_RETURN(host_, ModelHost::Open(options_.model));
  LogLoaded(options_.model, host_->start, clock_.Now() - begin);
  return drafts && on_cpu ? OpenDraftModel(host_->threads.get()) : absl::OkStatus();
}

absl::Status WorkerRuntime::OpenDraftModel(ThreadPool* threads) {
  const TimePoint begin = clock_.Now();
  ASSIGN_OR_RETURN(draft_host_, OpenDraftHost(options_.draft, threads));
  LogLoaded(options_.draft, draft_host_->start, clock_.Now() - begin);
  return absl::OkStatus();
}

void WorkerRuntime::OpenServices() {
  peer_sends_ = std::make_unique<PeerSendMetrics>(metrics_);
  peer_store_ =
      std::make_unique<PeerStoreService>(PeerStoreBackend{.cache = *cache_,
                                                          .sender = *sender_,
                                                          .handoffs = *handoffs_,
                                                          .layout = host_->layout,
                                                          .blocks_left = watermark_,
                                                          .calls_max = options_.peer_reads,
                                                          .metrics = *peer_sends_,
                                                          .on_step = options_.on_peer_send_step});
  handoff_service_ = std::make_unique<HandoffService>(*receiver_);
  ticker_ = std::make_unique<Ticker>(options_.lease / 6, [this] { receiver_->Tick(); });
}

absl::Status WorkerRuntime::Serve(std::vector<std::unique_ptr<WorkerRole>> roles) {
  roles_ = std::move(roles);
  described_ = DescribeWorker(*host_);
  MakeRoleSwitch();
  RETURN_IF_ERROR(StartServer());
  described_.set_worker_id(WorkerId(options_.worker_id, std::string(RoleName(options_.first_role)),
                                    server_->endpoint()));
  RETURN_IF_ERROR(StartKvEvents());
  RETURN_IF_ERROR(StartMetrics());
  ready_ = true;
  ShowHealth();
  watchdog_ = std::make_unique<Watchdog>([this] { return switch_->beats(); }, options_.stall_max,
                                         [this](bool stalled) { OnStall(stalled); });
  Log(LogLevel::kInfo, "serving",
      {{"endpoint", endpoint()},
       {"metrics", described_.metrics_endpoint()},
       {"kv_events", kv_events_endpoint()},
       {"worker", described_.worker_id()},
       {"blocks", host_->pool->blocks_total()},
       {"block_tokens", host_->layout.block_tokens},
       {"context", host_->runner->max_position()},
       {"chunk_tokens", options_.chunk_tokens},
       {"max_batch", options_.max_batch},
       {"weights", host_->weights_form},
       {"arithmetic", host_->arithmetic},
       {"numerics", host_->numerics}});
  return absl::OkStatus();
}

void WorkerRuntime::MakeRoleSwitch() {
  std::vector<WorkerRole*> roles;
  for (const auto& role : roles_) roles.push_back(role.get());
  switch_ = std::make_unique<RoleSwitch>(RoleSwitch::Parts{.roles = std::move(roles),
                                                           .metrics = metrics_,
                                                           .incarnation = described_.incarnation(),
                                                           .on_turning = [this] { OnTurning(); }},
                                         options_.first_role);
}

absl::Status WorkerRuntime::StartServer() {
  status_ = std::make_unique<StatusService>([this] { return State(); },
                                            [this] { return cache_->Subscribe(); });
  admin_ = std::make_unique<WorkerAdmin>(
      options_.process, *operators_, [this](bool draining) { return SetDraining(draining); },
      [this](v1::WorkerState::Role to, Duration within, RoleSwitch::OnTurned done) {
        switch_->Turn(to, within, std::move(done));
      });
  std::vector<grpc::Service*> services = {handoff_service_->service(), peer_store_->service(),
                                          kv_admin_->service()};
  for (const auto& role : roles_) services.push_back(role->service());
  services.push_back(status_->service());
  services.push_back(admin_->service());
  ASSIGN_OR_RETURN(
      server_, RpcServer::Start(
                   {.listen = options_.listen, .services = std::move(services), .tls = cluster_}));
  return absl::OkStatus();
}

absl::Status WorkerRuntime::StartMetrics() {
  AddWorkerMetrics(metrics_,
                   {.model_name = host_->name,
                    .block_bytes = host_->pool->block_bytes(),
                    .block_tokens = host_->layout.block_tokens,
                    .blocks = host_->pool->blocks_total(),
                    .beats = [this] { return switch_->beats(); }},
                   [this] { return State(); });
  if (options_.metrics_listen.empty()) return absl::OkStatus();
  // Liveness over plain HTTP: a certificate that has expired must not end a worker that computes.
  ASSIGN_OR_RETURN(metrics_server_,
                   MetricsServer::Start(options_.metrics_listen, metrics_,
                                        {{.path = "/live", .serving = [this] { return live(); }}}));
  described_.set_metrics_endpoint(metrics_server_->endpoint());
  return absl::OkStatus();
}

absl::Status WorkerRuntime::StartKvEvents() {
  kv_event_metrics_ = std::make_unique<KvEventMetrics>(metrics_);
  if (options_.kv_events_listen.empty()) return absl::OkStatus();
  const std::string topic = options_.kv_events_topic.empty()
                                ? fmt::format("kv@{}@{}", described_.worker_id(), host_->name)
                                : options_.kv_events_topic;
  KvEventPublisher::Options options{
      .listen = options_.kv_events_listen,
      .topic = topic,
      .form = options_.kv_events_as_maps ? KvEventForm::kMap : KvEventForm::kArray,
      .block_tokens = host_->layout.block_tokens};
  auto source =
      std::make_unique<KvEventSource>([this] { return cache_->Subscribe(); }, *cache_->tokens());
  ASSIGN_OR_RETURN(kv_events_, KvEventPublisher::Start(std::move(options), std::move(source),
                                                       *kv_event_metrics_));
  return absl::OkStatus();
}

// Calls end before the parts that they use: drain, then roles, sender, tiers and the server.
void WorkerRuntime::Stop(Duration grace) {
  if (std::exchange(stopped_, true)) return;
  BeginDrain();
  if (switch_ != nullptr) {
    switch_->Stop();  // A turn that is under way ends with an error.
    // Routers that see the drain move running choices to other decode workers.
    Drain([this] { return switch_->open_work(); }, grace);
  }
  StopWatches();
  if (grammars_ != nullptr) grammars_->Stop();  // Requests that wait for one go on, and end below.
  for (const auto& role : roles_) role->Stop();
  // Its handoffs' calls end with a status that lets the router retry elsewhere.
  if (sender_ != nullptr) sender_->Stop();
  if (kv_admin_ != nullptr) kv_admin_->Stop();
  if (cache_ != nullptr) cache_->AttachStore(nullptr);
  if (tiers_ != nullptr) tiers_->Stop();
  kv_events_.reset();
  metrics_server_.reset();
  if (server_ != nullptr) server_->Stop(std::chrono::seconds(1));
}

WorkerRuntime::~WorkerRuntime() { Stop(Duration::zero()); }

}  // namespace penstock
