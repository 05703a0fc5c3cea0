#pragma once

#include <memory>
#include <string>

#include "base/metrics.h"
#include "kvstore/tiered_store.h"
#include "worker/model_host.h"

namespace penstock {

struct StoreConfig {
  std::string dram_memory;  // "256MiB"; "0B": none
  std::string nvme_dir;     // empty: none
  std::string nvme_size;
  std::string nvme_io;
  uint32_t nvme_min_uses = 2;
};

// What PrefillConfig and DecodeConfig say about tiers.
template <class Config>
StoreConfig StoreConfigOf(const Config& config) {
  return {.dram_memory = config.dram_memory(),
          .nvme_dir = config.nvme_dir(),
          .nvme_size = config.nvme_size(),
          .nvme_io = config.nvme_io(),
          .nvme_min_uses = config.nvme_min_uses()};
}

// The tiers below the host's block pool, not started yet, shown in `metrics`, whose server ends
// before the store does. Errors name the field and its limit.
absl::StatusOr<std::unique_ptr<TieredStore>> OpenStore(const StoreConfig& config, ModelHost& host,
                                                       MetricsRegistry& metrics,
                                                       OnBlockEvent on_event);

}  // namespace penstock
