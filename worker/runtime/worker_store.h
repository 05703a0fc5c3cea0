#pragma once

#include <functional>
#include <memory>
#include <string>

#include "base/metrics/metrics.h"
#include "kvstore/manager/kv_cache_manager.h"
#include "kvstore/tiers/tiered_store.h"
#include "proto/worker.pb.h"
#include "worker/engine/model_host.h"
#include "worker/runtime/kv_admin.h"

namespace penstock {

struct StoreConfig {
  std::string dram_memory;  // "256MiB"; "0B": none
  std::string nvme_dir;     // empty: none
  std::string nvme_size;
  std::string nvme_io;
  std::string nvme_codec = "raw";
  uint32_t nvme_min_uses = 1;
};

// The tiers below a worker's block pool, and their place below its cache, which is told of what
// they serve and offers them what it evicts.
class WorkerStore {
 public:
  // What a WorkerStore stands on; all outlive it, and the server of `metrics` ends before it.
  struct Parts {
    ModelHost& host;
    KvCacheManager& cache;
    MetricsRegistry& metrics;
    std::string worker_id = {};
    std::function<void()> on_pages_freed = {};  // as of TieredStore
  };

  // Starts at once. Errors name the field and its limit.
  static absl::StatusOr<std::unique_ptr<WorkerStore>> Open(const StoreConfig& config, Parts parts);
  ~WorkerStore();  // Stop()s.

  TieredStore& tiers() { return *tiers_; }
  // The tiers' part of a WorkerState. Any thread.
  void Describe(v1::WorkerState* state) const;
  grpc::Service* admin() { return admin_.service(); }  // KvAdmin

  // Takes the tiers from the cache and ends what they are doing; every page is given back. The
  // engine has stopped. Idempotent.
  void Stop();

 private:
  WorkerStore(const StoreConfig& config, const Parts& parts, std::unique_ptr<TieredStore> tiers);

  KvCacheManager& cache_;
  const std::unique_ptr<TieredStore> tiers_;
  KvAdmin admin_;
};

}  // namespace penstock
