#pragma once

#include <array>
#include <string>

#include "base/metrics/metrics.h"
#include "kvstore/manager/kv_cache_manager.h"
#include "kvstore/tiers/disk/store_stats.h"
#include "kvstore/tiers/disk/store_types.h"

namespace penstock {

// The metrics of a worker's cached KV. Hits, misses, spills, restores and evictions count blocks.
struct StoreMetrics {
  struct TierMetrics {
    TierMetrics(MetricsRegistry& registry, const std::string& tier);
    void Show(const TierStats& stats, uint64_t missed);
    prometheus::Gauge& bytes_total;
    prometheus::Gauge& bytes_used;
    prometheus::Gauge& blocks;
    prometheus::Counter& hits;
    prometheus::Counter& misses;
    prometheus::Counter& spills;
    prometheus::Counter& restores;
    prometheus::Histogram& spill_seconds;
    prometheus::Histogram& restore_seconds;
    std::array<prometheus::Counter*, kEvictionReasons> evictions;
  };
  // Device pages. WorkerMetrics shows their size and use.
  struct DeviceMetrics {
    explicit DeviceMetrics(MetricsRegistry& registry);
    void Show(const WorkerCacheStats& cache);
    prometheus::Counter& hits;
    prometheus::Counter& misses;
    prometheus::Counter& evicted;
    prometheus::Counter& evicted_pinned;
  };

  // The same counts under vLLM's names and in tokens, as vLLM counts them.
  struct Vllm {
    Vllm(MetricsRegistry& registry, const std::string& model_name);
    prometheus::Counter& queried;
    prometheus::Counter& hit;
    prometheus::Counter& preemptions;
  };

  StoreMetrics(MetricsRegistry& registry, const std::string& model_name, uint64_t tokens_of_block);

  void Show(const StoreStats& stats, const WorkerCacheStats& cache);
  TierMetrics& For(Tier tier) { return tier == Tier::kDram ? dram : nvme; }

  const uint64_t block_tokens;
  Vllm vllm;
  DeviceMetrics device;
  TierMetrics dram;
  TierMetrics nvme;
  prometheus::Counter& spills_refused;
  prometheus::Counter& spills_dropped;
  prometheus::Counter& demotions_dropped;
  prometheus::Counter& dram_corrupt;
  prometheus::Gauge& swapped_blocks;
  prometheus::Counter& swaps_out;
  prometheus::Counter& swaps_in;
  prometheus::Counter& swaps_refused;
  prometheus::Counter& nvme_bytes_admitted;
  prometheus::Counter& nvme_bytes_written;
  prometheus::Gauge& nvme_write_amplification;
  prometheus::Counter& nvme_corrupt;
  prometheus::Counter& nvme_torn;
  prometheus::Counter& nvme_read_errors;
  prometheus::Counter& nvme_write_errors;
  prometheus::Counter& nvme_late_reads;
  prometheus::Gauge& nvme_serving;
  prometheus::Gauge& nvme_writing;
  prometheus::Gauge& nvme_segments;
  prometheus::Gauge& nvme_index_bytes;
};

}  // namespace penstock
