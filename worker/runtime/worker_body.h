#pragma once

#include <functional>
#include <memory>
#include <string_view>
#include <vector>

#include "kvstore/handoff/kv_receiver.h"
#include "kvstore/wire/wire.h"
#include "worker/engine/ticker.h"
#include "worker/handoff/handoff_service.h"
#include "worker/handoff/kv_sending.h"
#include "worker/handoff/lossy_kv.h"
#include "worker/handoff/peer_store_service.h"
#include "worker/runtime/drain.h"
#include "worker/runtime/fault.h"
#include "worker/runtime/role_switch.h"
#include "worker/runtime/worker_shell.h"
#include "worker/runtime/worker_store.h"

namespace penstock {

// What of a worker outlives its roles: model, pages, prefix cache and tiers, the wire with both
// ends of handoffs, and the server. Roles are made over it, then it serves them.
class WorkerBody {
 public:
  struct Options {
    WorkerShell::Options shell;
    std::string wire;       // lanes allowed
    std::string wire_host;  // that it binds
    std::string nccl_library;
    KvCacheManager::Options cache;
    StoreConfig store;
    std::string lossy_kv;
    KvSendingOptions sending;
    std::function<void(std::string_view step)> on_received_step;  // of a KvReceiver; may be empty
    std::function<void(std::string_view step)> on_found;          // of the peer store; likewise
    size_t waiting_max = 256;                                     // decode sessions, for blocks
    uint32_t peer_reads = 8;
  };

  // Loads the model, maps the pool and opens wire and tiers. Errors name field, file, address or
  // memory.
  static absl::StatusOr<std::unique_ptr<WorkerBody>> Open(Options options);
  ~WorkerBody();  // Stop(0)s.

  WorkerShell& shell() { return *shell_; }
  ModelHost& host() { return shell_->host(); }
  const Clock& clock() const { return shell_->clock(); }
  MetricsRegistry& metrics() { return shell_->metrics(); }
  KvCacheManager& cache() { return *cache_; }
  WorkerStore& store() { return *store_; }
  KvReceiver& receiver() { return *receiver_; }
  KvSending& sending() { return *sending_; }
  const LossyKv& lossy() const { return *lossy_; }
  const std::string& endpoint() const { return shell_->endpoint(); }

  // Blocks that are left to the sessions that are here, so that they need not make room for each
  // other with every block: one in a hundred.
  int64_t watermark() const { return watermark_; }

  // From here on the worker is there for everybody, in the role `first`. Once.
  absl::Status Serve(std::vector<std::unique_ptr<WorkerRole>> roles, v1::WorkerState::Role first);

  // Says that it is draining, lets what is open end for up to `grace`, then ends everything.
  void Stop(Duration grace);

 private:
  WorkerBody() = default;
  absl::Status OpenParts(Options options);
  absl::Status OpenDeviceSlabs();
  void DescribeParts(v1::WorkerState* state) const;

  // In the order of construction. The shell's server and metrics end before what they show.
  std::unique_ptr<WorkerShell> shell_;
  int64_t watermark_ = 1;
  std::unique_ptr<KvCacheManager> cache_;
  std::unique_ptr<LossyKv> lossy_;
  std::unique_ptr<SlabMemory> device_outgoing_, device_incoming_;  // null: the host's alone
  std::unique_ptr<KvReceiver> receiver_;
  std::unique_ptr<WorkerStore> store_;
  std::unique_ptr<Wire> wire_;
  std::unique_ptr<KvSending> sending_;
  std::unique_ptr<PeerSendMetrics> peer_sends_;
  std::unique_ptr<PeerStoreService> peer_store_;
  std::unique_ptr<HandoffService> handoff_;
  std::vector<std::unique_ptr<WorkerRole>> roles_;
  std::unique_ptr<RoleSwitch> switch_;
  std::unique_ptr<Ticker> ticker_;
  bool stopped_ = false;
};

}  // namespace penstock
