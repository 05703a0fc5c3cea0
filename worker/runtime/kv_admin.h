#pragma once

#include <memory>
#include <string>

#include "base/rpc/operator_gate.h"
#include "kvstore/cache/block_pool.h"
#include "kvstore/manager/kv_cache_manager.h"

namespace grpc {
class Service;
}

namespace penstock {

// Serves KvAdmin: statistics of a worker's cached KV, inspection of its NVMe directory, and flush.
class KvAdmin {
 public:
  // Everything referred to outlives the KvAdmin.
  struct Parts {
    BlockPool& pool;
    KvCacheManager& cache;
    TieredStore& store;
    const OperatorGate& operators;  // decides who may flush
    std::string nvme_dir;           // empty: none
    std::string worker_id;          // as it was configured
  };

  explicit KvAdmin(Parts parts);
  ~KvAdmin();
  grpc::Service* service();
  // Ends an inspection that is under way. Call it before the server shuts down.
  void Stop();

 private:
  class Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace penstock
