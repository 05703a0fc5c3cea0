#include "worker/runtime/worker_store.h"

#include <algorithm>
#include <utility>

#include "base/bytes.h"
#include "kvstore/codec/codec_choice.h"
#include "worker/runtime/store_metrics.h"

namespace penstock {
namespace {

absl::StatusOr<uint64_t> Bytes(const std::string& text, std::string_view field) {
  auto bytes = ParseBytes(text);
  if (!bytes.ok()) return Annotate(bytes.status(), field);
  return bytes;
}

absl::StatusOr<TieredStore::Options> OptionsOf(const StoreConfig& config, const ModelHost& host) {
  TieredStore::Options options;
  ASSIGN_OR_RETURN(options.dram_bytes, Bytes(config.dram_memory, "dram_memory"));
  if (!config.nvme_dir.empty()) {
    ASSIGN_OR_RETURN(options.nvme.bytes, Bytes(config.nvme_size, "nvme_size"));
  }
  ASSIGN_OR_RETURN(options.io, ParseIoBackend(config.nvme_io));
  options.nvme.directory = config.nvme_dir;
  options.nvme.format.model_fingerprint = host.fingerprint;
  options.nvme_uses_min = config.nvme_min_uses;
  if (config.nvme_codec != "auto") {
    ASSIGN_OR_RETURN(options.nvme.codec, ParseKvCodec(config.nvme_codec));
  } else if (!config.nvme_dir.empty() && host.layout.dtype == KvDtype::kBf16) {
    options.nvme.codec_choices = MeasureKvCodecs(
        std::vector<KvCodecSpec>{{.codec = KvCodec::kLx16}, {.codec = KvCodec::kLxr}});
  }
  // A long prompt evicts many blocks at once; none of them is lost for want of room in the line.
  options.spills_max = std::max<size_t>(64, static_cast<size_t>(host.pool->blocks_total()) / 4);
  return options;
}

}  // namespace

absl::StatusOr<std::unique_ptr<WorkerStore>> WorkerStore::Open(const StoreConfig& config,
                                                               Parts parts) {
  ASSIGN_OR_RETURN(TieredStore::Options options, OptionsOf(config, parts.host));
  auto shown = std::make_shared<StoreMetrics>(
      parts.metrics, parts.host.name, static_cast<uint64_t>(parts.host.layout.block_tokens));
  options.on_restore_time = [shown](Tier slowest, Duration time) {
    shown->Of(slowest).restore_seconds.Observe(std::chrono::duration<double>(time).count());
  };
  options.on_spill_time = [shown](Tier tier, Duration time) {
    shown->Of(tier).spill_seconds.Observe(std::chrono::duration<double>(time).count());
  };
  options.on_pages_freed = std::move(parts.on_pages_freed);
  ASSIGN_OR_RETURN(auto tiers, TieredStore::Open(options, parts.host.pool->view(),
                                                 [&cache = parts.cache](const BlockEvent& event) {
                                                   cache.OnStoreEvent(event);
                                                 }));
  parts.metrics.BeforeScrape([shown, raw = tiers.get(), &cache = parts.cache] {
    shown->Show(raw->stats(), cache.stats());
  });
  return std::unique_ptr<WorkerStore>(new WorkerStore(config, parts, std::move(tiers)));
}

WorkerStore::WorkerStore(const StoreConfig& config, const Parts& parts,
                         std::unique_ptr<TieredStore> tiers)
    : cache_(parts.cache),
      tiers_(std::move(tiers)),
      admin_({.pool = *parts.host.pool,
              .cache = parts.cache,
              .store = *tiers_,
              .nvme_dir = config.nvme_dir,
              .worker_id = parts.worker_id}) {
  tiers_->Start();
  cache_.AttachStore(tiers_.get());
}

WorkerStore::~WorkerStore() { Stop(); }

void WorkerStore::Describe(v1::WorkerState* state) const {
  const StoreStats stats = tiers_->stats();
  const auto describe = [](const TierStats& tier, v1::TierLoad* load) {
    load->set_bytes_total(tier.bytes_total);
    load->set_bytes_used(tier.bytes_used);
    load->set_blocks(tier.blocks);
  };
  if (stats.dram.bytes_total > 0) describe(stats.dram, state->mutable_dram());
  if (stats.nvme.tier.bytes_total > 0) describe(stats.nvme.tier, state->mutable_nvme());
}

void WorkerStore::Stop() {
  admin_.Stop();
  cache_.AttachStore(nullptr);
  tiers_->Stop();
}

}  // namespace penstock
