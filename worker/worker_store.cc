#include "worker/worker_store.h"

#include <utility>

#include "base/bytes.h"
#include "worker/store_metrics.h"

namespace penstock {
namespace {

absl::StatusOr<uint64_t> Bytes(const std::string& text, std::string_view field) {
  auto bytes = ParseBytes(text);
  if (!bytes.ok()) return Annotate(bytes.status(), field);
  return bytes;
}

}  // namespace

absl::StatusOr<std::unique_ptr<TieredStore>> OpenStore(const StoreConfig& config, ModelHost& host,
                                                       MetricsRegistry& metrics,
                                                       OnBlockEvent on_event) {
  TieredStore::Options options;
  ASSIGN_OR_RETURN(options.dram_bytes, Bytes(config.dram_memory, "dram_memory"));
  if (!config.nvme_dir.empty()) {
    ASSIGN_OR_RETURN(options.nvme.bytes, Bytes(config.nvme_size, "nvme_size"));
  }
  ASSIGN_OR_RETURN(options.io, ParseIoBackend(config.nvme_io));
  options.nvme.directory = config.nvme_dir;
  options.nvme.format.model_fingerprint = host.fingerprint;
  options.nvme_uses_least = config.nvme_min_uses;
  auto shown = std::make_shared<StoreMetrics>(metrics);
  options.on_restore_time = [shown](Tier slowest, Duration time) {
    shown->RestoreTime(slowest).Observe(std::chrono::duration<double>(time).count());
  };
  ASSIGN_OR_RETURN(auto store, TieredStore::Open(options, host.pool->view(), std::move(on_event)));
  metrics.BeforeScrape([shown, raw = store.get()] { shown->Show(raw->stats()); });
  return store;
}

}  // namespace penstock
