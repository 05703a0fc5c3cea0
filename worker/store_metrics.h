#pragma once

#include <array>
#include <string>

#include "base/metrics.h"
#include "kvstore/store_stats.h"
#include "kvstore/store_types.h"

namespace penstock {

// What Prometheus sees of a TieredStore.
struct StoreMetrics {
  explicit StoreMetrics(MetricsRegistry& registry);

  void Show(const StoreStats& stats);
  prometheus::Histogram& RestoreTime(Tier slowest) {
    return slowest == Tier::kDram ? dram.restore_seconds : nvme.restore_seconds;
  }

  struct OfTier {
    OfTier(MetricsRegistry& registry, const std::string& tier);
    void Show(const TierStats& stats);
    prometheus::Gauge& bytes_total;
    prometheus::Gauge& bytes_used;
    prometheus::Gauge& blocks;
    prometheus::Counter& hits;
    prometheus::Counter& spills;
    prometheus::Counter& restores;
    prometheus::Histogram& restore_seconds;
    std::array<prometheus::Counter*, kEvictionReasons> evictions;
  };
  OfTier dram;
  OfTier nvme;
  prometheus::Counter& misses;
  prometheus::Counter& spills_refused;
  prometheus::Counter& spills_dropped;
  prometheus::Counter& demotions_dropped;
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
