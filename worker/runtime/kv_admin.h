#pragma once

#include <memory>
#include <string>

#include "kvstore/cache/block_pool.h"
#include "kvstore/manager/kv_cache_manager.h"

namespace grpc {
class Service;
}

namespace penstock {

// Serves KvAdmin: what a worker's cached KV is doing.
class KvAdmin {
 public:
  // What it stands on; all that is referred to outlives it.
  struct Parts {
    BlockPool& pool;
    KvCacheManager& cache;
    TieredStore& store;
    std::string nvme_dir;   // empty: none
    std::string worker_id;  // as it was configured
  };

  explicit KvAdmin(Parts parts);
  ~KvAdmin();
  grpc::Service* service();
  // Cuts a directory that is being read short. Before the server shuts down.
  void Stop();

 private:
  class Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace penstock
