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

// The parts that the PeerStore service uses. Everything referred to outlives the service.
struct PeerStoreBackend {
  KvCacheManager& cache;
  KvSender& sender;
  HandoffClient& handoffs;
  KvLayout layout;
  int64_t blocks_left = 0;  // left to this worker's own requests
  uint32_t calls_max = 0;   // at once; beyond it RESOURCE_EXHAUSTED
  PeerSendMetrics& metrics;
  std::function<void(std::string_view step)>
      on_step;  // "found"; may be empty. For fault injection.
};

// Serves PeerStore: finds the requested leading blocks in this worker's tiers, restores them into
// device pages as for a request of its own, and hands them over. A cancelled call ends all of that.
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
