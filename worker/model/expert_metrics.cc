#include "worker/model/expert_metrics.h"

#include <memory>

namespace penstock {
namespace {

struct ExpertMetrics {
  explicit ExpertMetrics(MetricsRegistry& registry)
      : hits(registry.Counter("penstock_expert_hits_total",
                              "Experts that a layer of a step needed and that were in memory.")),
        misses(registry.Counter("penstock_expert_misses_total",
                                "Experts that a layer of a step needed and that were read.")),
        bytes_read(registry.Counter("penstock_expert_read_bytes_total",
                                    "Bytes of experts read from the file in expert_dir.")),
        read_errors(registry.Counter("penstock_expert_read_errors_total",
                                     "Reads of experts that failed; each ended requests.")),
        wait_seconds(registry.Counter("penstock_expert_wait_seconds_total",
                                      "Time in which the engine waited for experts to be read.")),
        capacity_bytes(registry.Gauge("penstock_expert_capacity_bytes",
                                      "Memory for experts of expert_memory.")),
        resident_bytes(
            registry.Gauge("penstock_expert_resident_bytes", "Bytes of experts in that memory.")),
        file_bytes(registry.Gauge("penstock_expert_file_bytes",
                                  "Size of the file of all experts in expert_dir.")) {}

  void Show(const ExpertCacheStats& stats) {
    RaiseTo(hits, stats.hits);
    RaiseTo(misses, stats.misses);
    RaiseTo(bytes_read, stats.bytes_read);
    RaiseTo(read_errors, stats.read_errors);
    RaiseTo(wait_seconds, stats.wait_s);
    capacity_bytes.Set(static_cast<double>(stats.bytes_total));
    resident_bytes.Set(static_cast<double>(stats.bytes_resident));
    file_bytes.Set(static_cast<double>(stats.file_bytes));
  }

  prometheus::Counter& hits;
  prometheus::Counter& misses;
  prometheus::Counter& bytes_read;
  prometheus::Counter& read_errors;
  prometheus::Counter& wait_seconds;
  prometheus::Gauge& capacity_bytes;
  prometheus::Gauge& resident_bytes;
  prometheus::Gauge& file_bytes;
};

}  // namespace

void AddExpertMetrics(MetricsRegistry& registry, const ExpertCache* cache) {
  auto metrics = std::make_shared<ExpertMetrics>(registry);
  if (cache == nullptr) return;
  registry.BeforeScrape([metrics, cache] { metrics->Show(cache->stats()); });
}

}  // namespace penstock
