#pragma once

#include <functional>
#include <memory>
#include <string_view>

#include "kvstore/handoff/kv_sender.h"
#include "kvstore/manager/kv_cache_manager.h"
#include "worker/handoff/handoff_client.h"
#include "worker/handoff/peer_metrics.h"

namespace grpc {
class Service;
}

namespace penstock {

// What the PeerStore service stands on; all that is referred to outlives it.
struct PeerStoreBackend {
  KvCacheManager& cache;
  KvSender& sender;
  HandoffClient& handoffs;
  KvLayout layout;
  int64_t blocks_left = 0;  // that restoring for others leaves to what this worker has to do
  uint32_t calls_max = 0;   // at once; beyond it RESOURCE_EXHAUSTED
  PeerSendMetrics& metrics;
  std::function<void(std::string_view step)>
      on_step;  // "found"; may be empty. For fault injection.
};

// Serves PeerStore: finds the leading blocks that are asked for in this worker's tiers, brings them
// into device pages as for a request of its own, and hands them over. A cancelled call ends that.
class PeerStoreService {
 public:
  explicit PeerStoreService(PeerStoreBackend backend);
  ~PeerStoreService();
  grpc::Service* service();

 private:
  class Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace penstock
