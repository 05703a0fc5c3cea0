#include "worker/runtime/store_metrics.h"

#include <gtest/gtest.h>

#include <map>

namespace penstock {
namespace {

// Name and labels to value, of counters and gauges.
std::map<std::string, double> Shown(const MetricsRegistry& registry) {
  std::map<std::string, double> shown;
  for (const prometheus::MetricFamily& family : registry.Collect()) {
    for (const prometheus::ClientMetric& metric : family.metric) {
      std::string name = family.name;
      for (const auto& label : metric.label) name += " " + label.value;
      shown[name] = metric.counter.value + metric.gauge.value;
    }
  }
  return shown;
}

// Faults of disks and crashes are tested with the store (nvme_store_test,
// tiered_store_test); here each of its figures has the name that docs/operations/metrics.md gives
// it.
TEST(StoreMetrics, EveryFigureHasItsName) {
  StoreStats stats;
  stats.spills_refused = 3;
  stats.spills_dropped = 4;
  stats.demotions_dropped = 5;
  stats.dram_corrupt = 19;
  stats.swap_slots = 6;
  stats.swaps_out = 7;
  stats.swaps_in = 8;
  stats.swaps_refused = 9;
  stats.dram.hits = 10;
  stats.nvme.tier.spills = 11;
  stats.nvme.bytes_admitted = 20;
  stats.nvme.bytes_written = 30;
  stats.nvme.corrupt = 12;
  stats.nvme.torn = 13;
  stats.nvme.read_errors = 14;
  stats.nvme.write_errors = 15;
  stats.nvme.late_reads = 16;
  stats.nvme.segments = 17;
  stats.nvme.index_bytes = 18;
  stats.nvme.serving = false;
  stats.nvme.writing = true;
  WorkerCacheStats cache;
  cache.device.hit = 2;
  cache.missed = {5, 40, 41};
  MetricsRegistry registry;
  StoreMetrics metrics(registry, "tiny", /*tokens_of_block=*/16);
  metrics.Show(stats, cache);
  metrics.Show(stats, cache);  // counters are not added up
  const std::map<std::string, double> shown = Shown(registry);
  const std::map<std::string, double> expected = {
      {"penstock_kv_spills_refused_total", 3},
      {"penstock_kv_spills_dropped_total", 4},
      {"penstock_kv_demotions_dropped_total", 5},
      {"penstock_kv_dram_corrupt_total", 19},
      {"penstock_kv_blocks swapped dram", 6},
      {"penstock_kv_swaps_out_total", 7},
      {"penstock_kv_swaps_in_total", 8},
      {"penstock_kv_swaps_refused_total", 9},
      {"penstock_kv_cache_hits_total dram", 10},
      {"penstock_kv_cache_hits_total device", 2},
      {"penstock_kv_cache_misses_total device", 5},
      {"penstock_kv_cache_misses_total dram", 40},
      {"penstock_kv_cache_misses_total nvme", 41},
      {"penstock_kv_spills_total nvme", 11},
      {"penstock_kv_nvme_admitted_bytes_total", 20},
      {"penstock_kv_nvme_written_bytes_total", 30},
      {"penstock_kv_nvme_write_amplification", 1.5},
      {"penstock_kv_nvme_corrupt_total", 12},
      {"penstock_kv_nvme_torn_total", 13},
      {"penstock_kv_nvme_read_errors_total", 14},
      {"penstock_kv_nvme_write_errors_total", 15},
      {"penstock_kv_nvme_late_reads_total", 16},
      {"penstock_kv_nvme_segments", 17},
      {"penstock_kv_nvme_index_bytes", 18},
      {"penstock_kv_nvme_serving", 0},
      {"penstock_kv_nvme_writing", 1},
      {"vllm:prefix_cache_queries_total 0 tiny", 7 * 16},
      {"vllm:prefix_cache_hits_total 0 tiny", 2 * 16},
      {"vllm:num_preemptions_total 0 tiny", 7},
  };
  for (const auto& [name, value] : expected) {
    ASSERT_TRUE(shown.contains(name)) << name;
    EXPECT_EQ(shown.at(name), value) << name;
  }
}

}  // namespace
}  // namespace penstock
