#include "worker/runtime/store_metrics.h"

namespace penstock {
namespace {

void RaiseTo(prometheus::Gauge& gauge, uint64_t value) { gauge.Set(static_cast<double>(value)); }

prometheus::Counter& Hits(MetricsRegistry& registry, const std::string& tier) {
  return registry.Counter("penstock_kv_cache_hits_total",
                          "Blocks of prompts that were served from a tier.", {{"tier", tier}});
}

prometheus::Counter& Misses(MetricsRegistry& registry, const std::string& tier) {
  return registry.Counter("penstock_kv_cache_misses_total",
                          "Blocks of prompts that neither this tier nor a faster one had.",
                          {{"tier", tier}});
}

prometheus::Counter& Evictions(MetricsRegistry& registry, const std::string& tier,
                               const std::string& reason) {
  return registry.Counter("penstock_kv_evictions_total", "Blocks that left a tier, by reason.",
                          {{"tier", tier}, {"reason", reason}});
}

}  // namespace

StoreMetrics::DeviceMetrics::DeviceMetrics(MetricsRegistry& registry)
    : hits(Hits(registry, "device")),
      misses(Misses(registry, "device")),
      evicted(Evictions(registry, "device", "capacity")),
      evicted_pinned(Evictions(registry, "device", "pinned")) {}

void StoreMetrics::DeviceMetrics::Show(const WorkerCacheStats& cache) {
  RaiseTo(hits, cache.device.hit);
  RaiseTo(misses, cache.missed[0]);
  RaiseTo(evicted, cache.device.evicted - cache.device.evicted_pinned);
  RaiseTo(evicted_pinned, cache.device.evicted_pinned);
}

StoreMetrics::TierMetrics::TierMetrics(MetricsRegistry& registry, const std::string& tier)
    : bytes_total(registry.Gauge("penstock_kv_capacity_bytes", "Size of a tier of KV blocks.",
                                 {{"tier", tier}})),
      bytes_used(registry.Gauge("penstock_kv_used_bytes", "Used bytes of a tier of KV blocks.",
                                {{"tier", tier}})),
      blocks(registry.Gauge("penstock_kv_blocks", "Blocks of a tier, by state.",
                            {{"tier", tier}, {"state", "cached"}})),
      hits(Hits(registry, tier)),
      misses(Misses(registry, tier)),
      spills(registry.Counter("penstock_kv_spills_total",
                              "Blocks copied into a tier from the one above.", {{"tier", tier}})),
      restores(registry.Counter("penstock_kv_restores_total",
                                "Blocks restored from a tier into device pages.",
                                {{"tier", tier}})),
      spill_seconds(
          registry.Histogram("penstock_kv_spill_seconds",
                             "Time from the offer of a block to a tier until the tier has it.",
                             StepBuckets(), {{"tier", tier}})),
      restore_seconds(registry.Histogram(
          "penstock_kv_restore_seconds",
          "Time of a restore into device pages, by the slowest tier that it read.", StepBuckets(),
          {{"tier", tier}})) {
  for (size_t i = 0; i < evictions.size(); ++i) {
    evictions[i] = &Evictions(registry, tier, EvictionReasonName(static_cast<EvictionReason>(i)));
  }
}

void StoreMetrics::TierMetrics::Show(const TierStats& stats, uint64_t missed) {
  RaiseTo(bytes_total, stats.bytes_total);
  RaiseTo(bytes_used, stats.bytes_used);
  RaiseTo(blocks, stats.blocks);
  RaiseTo(hits, stats.hits);
  RaiseTo(misses, missed);
  RaiseTo(spills, stats.spills);
  RaiseTo(restores, stats.restores);
  for (size_t i = 0; i < evictions.size(); ++i) RaiseTo(*evictions[i], stats.evictions[i]);
}

StoreMetrics::Vllm::Vllm(MetricsRegistry& registry, const std::string& model_name)
    : queried(registry.Counter("vllm:prefix_cache_queries_total",
                               "Prompt tokens that were looked up in device pages.",
                               {{"model_name", model_name}, {"engine", "0"}})),
      hit(registry.Counter("vllm:prefix_cache_hits_total",
                           "Prompt tokens that were found in device pages.",
                           {{"model_name", model_name}, {"engine", "0"}})),
      preemptions(registry.Counter("vllm:num_preemptions_total", "As penstock_kv_swaps_out_total.",
                                   {{"model_name", model_name}, {"engine", "0"}})) {}

StoreMetrics::StoreMetrics(MetricsRegistry& registry, const std::string& model_name,
                           uint64_t tokens_of_block)
    : block_tokens(tokens_of_block),
      vllm(registry, model_name),
      device(registry),
      dram(registry, "dram"),
      nvme(registry, "nvme"),
      spills_refused(
          registry.Counter("penstock_kv_spills_refused_total",
                           "Blocks evicted without a copy because the spill queue was full.")),
      spills_dropped(registry.Counter("penstock_kv_spills_dropped_total",
                                      "Blocks evicted without a copy because no slot was free.")),
      demotions_dropped(registry.Counter(
          "penstock_kv_demotions_dropped_total",
          "Blocks that left host memory unwritten because the disk was too slow.")),
      dram_corrupt(registry.Counter("penstock_kv_dram_corrupt_total",
                                    "Blocks in host memory that failed verification.")),
      swapped_blocks(registry.Gauge("penstock_kv_blocks", "Blocks of a tier, by state.",
                                    {{"tier", "dram"}, {"state", "swapped"}})),
      swaps_out(registry.Counter("penstock_kv_swaps_out_total", "Sequences swapped out.")),
      swaps_in(registry.Counter("penstock_kv_swaps_in_total", "Sequences swapped in again.")),
      swaps_refused(
          registry.Counter("penstock_kv_swaps_refused_total",
                           "Sequences that were not swapped out because no slots were free.")),
      nvme_bytes_admitted(registry.Counter("penstock_kv_nvme_admitted_bytes_total",
                                           "Bytes of blocks given to the NVMe tier.")),
      nvme_bytes_written(registry.Counter("penstock_kv_nvme_written_bytes_total",
                                          "Bytes written to the disk for admitted blocks.")),
      nvme_write_amplification(
          registry.Gauge("penstock_kv_nvme_write_amplification",
                         "Bytes written divided by bytes admitted, since the start.")),
      nvme_corrupt(registry.Counter("penstock_kv_nvme_corrupt_total",
                                    "Blocks or metadata that failed verification.")),
      nvme_torn(registry.Counter("penstock_kv_nvme_torn_total",
                                 "Blocks whose write was cut off by a crash.")),
      nvme_read_errors(
          registry.Counter("penstock_kv_nvme_read_errors_total", "Reads that failed.")),
      nvme_write_errors(
          registry.Counter("penstock_kv_nvme_write_errors_total", "Writes that failed.")),
      nvme_late_reads(registry.Counter("penstock_kv_nvme_late_reads_total",
                                       "Blocks that the disk did not deliver in time.")),
      nvme_serving(
          registry.Gauge("penstock_kv_nvme_serving", "1 while the NVMe tier can be read.")),
      nvme_writing(
          registry.Gauge("penstock_kv_nvme_writing", "1 while the NVMe tier can be written.")),
      nvme_segments(registry.Gauge("penstock_kv_nvme_segments", "Segment files.")),
      nvme_index_bytes(
          registry.Gauge("penstock_kv_nvme_index_bytes", "Memory of the NVMe tier's index.")) {}

void StoreMetrics::Show(const StoreStats& stats, const WorkerCacheStats& cache) {
  device.Show(cache);
  RaiseTo(vllm.queried, (cache.device.hit + cache.missed[0]) * block_tokens);
  RaiseTo(vllm.hit, cache.device.hit * block_tokens);
  RaiseTo(vllm.preemptions, stats.swaps_out);
  dram.Show(stats.dram, cache.missed[1]);
  nvme.Show(stats.nvme.tier, cache.missed[2]);
  RaiseTo(spills_refused, stats.spills_refused);
  RaiseTo(spills_dropped, stats.spills_dropped);
  RaiseTo(demotions_dropped, stats.demotions_dropped);
  RaiseTo(dram_corrupt, stats.dram_corrupt);
  RaiseTo(swapped_blocks, stats.swap_slots);
  RaiseTo(swaps_out, stats.swaps_out);
  RaiseTo(swaps_in, stats.swaps_in);
  RaiseTo(swaps_refused, stats.swaps_refused);
  RaiseTo(nvme_bytes_admitted, stats.nvme.bytes_admitted);
  RaiseTo(nvme_bytes_written, stats.nvme.bytes_written);
  nvme_write_amplification.Set(stats.nvme.write_amplification());
  RaiseTo(nvme_corrupt, stats.nvme.corrupt);
  RaiseTo(nvme_torn, stats.nvme.torn);
  RaiseTo(nvme_read_errors, stats.nvme.read_errors);
  RaiseTo(nvme_write_errors, stats.nvme.write_errors);
  RaiseTo(nvme_late_reads, stats.nvme.late_reads);
  nvme_serving.Set(stats.nvme.serving ? 1 : 0);
  nvme_writing.Set(stats.nvme.writing ? 1 : 0);
  RaiseTo(nvme_segments, stats.nvme.segments);
  RaiseTo(nvme_index_bytes, stats.nvme.index_bytes);
}

}  // namespace penstock
