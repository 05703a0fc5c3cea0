#pragma once

#include <atomic>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "base/clock.h"
#include "base/lifecycle.h"
#include "base/metrics/metrics.h"
#include "base/mutex.h"
#include "base/rpc/operator_gate.h"
#include "base/rpc/rpc_server.h"
#include "base/rpc/tls.h"
#include "http/metrics/metrics_server.h"
#include "kvstore/handoff/kv_receiver.h"
#include "kvstore/handoff/kv_sender.h"
#include "kvstore/manager/kv_cache_manager.h"
#include "kvstore/tiers/tiered_store.h"
#include "kvstore/wire/wire.h"
#include "worker/engine/ticker.h"
#include "worker/engine/watchdog.h"
#include "worker/events/kv_event_publisher.h"
#include "worker/grammar/grammar_host.h"
#include "worker/handoff/handoff_client.h"
#include "worker/handoff/handoff_service.h"
#include "worker/handoff/kv_blends.h"
#include "worker/handoff/kv_evictions.h"
#include "worker/handoff/kv_selections.h"
#include "worker/handoff/lossy_kv.h"
#include "worker/handoff/peer_store_service.h"
#include "worker/handoff/transfer_metrics.h"
#include "worker/model/model_host.h"
#include "worker/runtime/kv_admin.h"
#include "worker/runtime/role_switch.h"
#include "worker/runtime/status_service.h"
#include "worker/runtime/worker_admin.h"
#include "worker/runtime/worker_role.h"
#include "worker/runtime/worker_runtime_options.h"

namespace penstock {

// This room (worker/runtime) holds the parts of a worker process that outlive its roles: the model
// and its pages, the prefix cache and its tiers, the wire with both ends of handoffs, metrics,
// health, and the private gRPC server. It starts them, changes roles over them and stops them. It
// knows roles only as WorkerRole: nothing of schedulers, engines, prompts or answers.
//
// Open, make the roles over the runtime, Serve, Stop. Main owns it.
class WorkerRuntime {
 public:
  // Loads the model, maps the pool and opens wire and tiers. Errors name field, file, address or
  // memory.
  static absl::StatusOr<std::unique_ptr<WorkerRuntime>> Open(WorkerRuntimeOptions options);
  ~WorkerRuntime();  // Stop(0)s.

  const Clock& clock() const { return clock_; }
  MetricsRegistry& metrics() { return metrics_; }
  ModelHost& host() { return *host_; }
  ModelHost* draft_host() { return draft_host_.get(); }  // null: there is no draft model
  KvCacheManager& cache() { return *cache_; }
  TieredStore& tiers() { return *tiers_; }
  GrammarHost& grammars() { return *grammars_; }
  const LossyKv& lossy() const { return *lossy_; }
  const KvEvictions& evictions() const { return evictions_; }
  const KvSelections& selections() const { return selections_; }
  const KvBlends& blends() const { return blends_; }
  KvReceiver& receiver() { return *receiver_; }
  KvSender& sender() { return *sender_; }
  HandoffClient& handoffs() { return *handoffs_; }           // control streams of `sender`
  TransferMetrics& sent_transfers() { return *transfers_; }  // those of `sender`
  // The credentials for connections to other workers.
  std::shared_ptr<grpc::ChannelCredentials> peer_credentials() const {
    return ChannelCredentialsOf(cluster_);
  }
  const std::string& endpoint() const { return server_->endpoint(); }
  // Empty when metrics are turned off.
  std::string metrics_endpoint() const {
    return metrics_server_ == nullptr ? "" : metrics_server_->endpoint();
  }

  // Empty when KV events are turned off.
  std::string kv_events_endpoint() const {
    return kv_events_ == nullptr ? "" : kv_events_->endpoint();
  }

  // New requests leave this many blocks to the running ones: one in a hundred. Otherwise running
  // requests would have to preempt each other for every further block.
  int64_t watermark() const { return watermark_; }

  // Starts the server and takes requests in the first role. Once.
  absl::Status Serve(std::vector<std::unique_ptr<WorkerRole>> roles);

  // Shows that the worker drains, waits up to `grace` until open requests have ended, then ends
  // everything. Idempotent.
  void Stop(Duration grace);

 private:
  explicit WorkerRuntime(WorkerRuntimeOptions options) : options_(std::move(options)) {}

  // worker_runtime.cc
  absl::Status OpenParts();
  absl::Status OpenModels();
  absl::Status OpenDraftModel(ThreadPool* threads);
  void OpenServices();
  void MakeRoleSwitch();
  absl::Status StartServer();
  absl::Status StartMetrics();
  absl::Status StartKvEvents();

  // worker_runtime_transfers.cc
  void OpenReceiver();
  absl::Status OpenWire();
  absl::Status OpenGpuSlabs();
  absl::Status StartSender();

  // worker_runtime_tiers.cc
  absl::Status OpenTiers();
  absl::StatusOr<TieredStore::Options> TierOptions() const;
  void DescribeTiers(v1::WorkerState* state) const;

  // worker_runtime_health.cc
  v1::WorkerState State() const;
  bool live() const { return !stalled_; }
  bool draining() const { return stopping_ || asked_to_drain_ || turning_; }
  void ShowHealth() EXCLUDES(health_mutex_);
  void OnStall(bool stalled);
  void OnTurning();
  absl::Status SetDraining(bool draining);  // asked by an operator
  void BeginDrain();
  void StopWatches();

  const WorkerRuntimeOptions options_;
  SteadyClock clock_;
  MetricsRegistry metrics_;
  std::shared_ptr<TlsIdentity> cluster_;  // null: no TLS; shared with the server
  std::unique_ptr<OperatorGate> operators_;

  // In the order of construction; destruction is the reverse.
  std::unique_ptr<ModelHost> host_;
  std::unique_ptr<ModelHost> draft_host_;
  int64_t watermark_ = 1;
  std::unique_ptr<GrammarHost> grammars_;
  std::unique_ptr<KvCacheManager> cache_;
  std::unique_ptr<LossyKv> lossy_;
  KvEvictions evictions_;
  KvSelections selections_;
  KvBlends blends_;
  GpuSlabMemories gpu_outgoing_, gpu_incoming_;  // null: the CPU works on slabs
  std::unique_ptr<KvReceiver> receiver_;
  std::unique_ptr<TieredStore> tiers_;
  std::unique_ptr<KvAdmin> kv_admin_;
  std::unique_ptr<Wire> wire_;
  std::unique_ptr<TransferMetrics> transfers_;
  std::unique_ptr<KvSender> sender_;
  std::unique_ptr<HandoffClient> handoffs_;
  std::unique_ptr<PeerSendMetrics> peer_sends_;
  std::unique_ptr<PeerStoreService> peer_store_;
  std::unique_ptr<HandoffService> handoff_service_;
  std::vector<std::unique_ptr<WorkerRole>> roles_;
  std::unique_ptr<RoleSwitch> switch_;

  // Health, which the server and the watchdog show.
  std::atomic<bool> ready_{false};
  std::atomic<bool> stopping_{false};
  std::atomic<bool> asked_to_drain_{false};
  std::atomic<bool> turning_{false};
  std::atomic<bool> stalled_{false};
  Mutex health_mutex_;  // one thread shows health at a time

  v1::WorkerState described_;  // the constant part; complete before `ready_`
  std::unique_ptr<StatusService> status_;
  std::unique_ptr<WorkerAdmin> admin_;
  std::unique_ptr<RpcServer> server_;
  std::unique_ptr<KvEventMetrics> kv_event_metrics_;
  std::unique_ptr<KvEventPublisher> kv_events_;  // null: turned off
  std::unique_ptr<MetricsServer> metrics_server_;
  std::unique_ptr<Watchdog> watchdog_;
  std::unique_ptr<Ticker> ticker_;
  bool stopped_ = false;
};

}  // namespace penstock
