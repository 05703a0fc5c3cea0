#include "worker/model/paging_metrics.h"

#include <memory>

namespace penstock {
namespace {

struct PagingMetrics {
  explicit PagingMetrics(MetricsRegistry& registry)
      : hits(registry.Counter(
            "penstock_kv_file_hits_total",
            "Layers of blocks that were needed, and were in memory or being read, as guessed.")),
        misses(registry.Counter("penstock_kv_file_misses_total",
                                "Layers of blocks that were needed and had not been read yet.")),
        bytes_read(
            registry.Counter("penstock_kv_file_read_bytes_total",
                             "Bytes of pages read from the file in kv_file_dir, guesses too.")),
        bytes_dropped(registry.Counter("penstock_kv_file_dropped_bytes_total",
                                       "Bytes of pages taken out of memory, and written to the "
                                       "file before if they were new.")),
        capacity_bytes(registry.Gauge("penstock_kv_file_capacity_bytes",
                                      "Memory for pages of the file in kv_file_dir.")),
        resident_bytes(registry.Gauge("penstock_kv_file_resident_bytes",
                                      "Bytes of pages of the file that are in memory.")),
        file_bytes(registry.Gauge("penstock_kv_file_bytes",
                                  "Size of the file of all KV pages in kv_file_dir.")) {}

  void Show(const DiskPagerStats& stats) {
    RaiseTo(hits, stats.hits);
    RaiseTo(misses, stats.misses);
    RaiseTo(bytes_read, stats.bytes_read);
    RaiseTo(bytes_dropped, stats.bytes_dropped);
    capacity_bytes.Set(static_cast<double>(stats.memory_bytes));
    resident_bytes.Set(static_cast<double>(stats.resident_bytes));
    file_bytes.Set(static_cast<double>(stats.file_bytes));
  }

  prometheus::Counter& hits;
  prometheus::Counter& misses;
  prometheus::Counter& bytes_read;
  prometheus::Counter& bytes_dropped;
  prometheus::Gauge& capacity_bytes;
  prometheus::Gauge& resident_bytes;
  prometheus::Gauge& file_bytes;
};

}  // namespace

void AddPagingMetrics(MetricsRegistry& registry, const DiskPager* pager) {
  auto metrics = std::make_shared<PagingMetrics>(registry);
  if (pager == nullptr) return;
  registry.BeforeScrape([metrics, pager] { metrics->Show(pager->stats()); });
}

}  // namespace penstock
