#include <algorithm>
#include <utility>

#include "base/bytes.h"
#include "kvstore/codec/codec_choice.h"
#include "worker/runtime/store_metrics.h"
#include "worker/runtime/worker_runtime.h"

namespace penstock {
namespace {

absl::StatusOr<uint64_t> Bytes(const std::string& text, std::string_view field) {
  auto bytes = ParseBytes(text);
  if (!bytes.ok()) return Annotate(bytes.status(), field);
  return bytes;
}

void SetTierLoad(const TierStats& tier, v1::TierLoad* load) {
  load->set_bytes_total(tier.bytes_total);
  load->set_bytes_used(tier.bytes_used);
  load->set_blocks(tier.blocks);
}

}  // namespace

absl::StatusOr<TieredStore::Options> WorkerRuntime::TierOptions() const {
  TieredStore::Options tiers;
  ASSIGN_OR_RETURN(tiers.dram_bytes, Bytes(options_.dram_memory, "dram_memory"));
  if (!options_.nvme_dir.empty()) {
    ASSIGN_OR_RETURN(tiers.nvme.bytes, Bytes(options_.nvme_size, "nvme_size"));
  }
  ASSIGN_OR_RETURN(tiers.io, ParseIoBackend(options_.nvme_io));
  tiers.nvme.directory = options_.nvme_dir;
  tiers.nvme.format.model_fingerprint = host_->fingerprint;
  tiers.nvme_uses_min = options_.nvme_min_uses;
  if (options_.nvme_codec != "auto") {
    ASSIGN_OR_RETURN(tiers.nvme.codec, ParseKvCodec(options_.nvme_codec));
  } else if (!options_.nvme_dir.empty() && host_->layout.dtype == KvDtype::kBf16) {
    tiers.nvme.codec_choices = MeasureKvCodecs(
        std::vector<KvCodecSpec>{{.codec = KvCodec::kLx16}, {.codec = KvCodec::kLxr}});
  }
  // A long prompt evicts many blocks at once, and all of them fit this queue.
  tiers.spills_max = std::max<size_t>(64, static_cast<size_t>(host_->pool->blocks_total()) / 4);
  return tiers;
}

absl::Status WorkerRuntime::OpenTiers() {
  ASSIGN_OR_RETURN(TieredStore::Options options, TierOptions());
  auto shown = std::make_shared<StoreMetrics>(metrics_, host_->name,
                                              static_cast<uint64_t>(host_->layout.block_tokens));
  options.on_restore_time = [shown](Tier slowest, Duration time) {
    shown->For(slowest).restore_seconds.Observe(std::chrono::duration<double>(time).count());
  };
  options.on_spill_time = [shown](Tier tier, Duration time) {
    shown->For(tier).spill_seconds.Observe(std::chrono::duration<double>(time).count());
  };
  options.on_pages_freed = [this] { receiver_->OnBlocksFreed(); };
  ASSIGN_OR_RETURN(
      tiers_, TieredStore::Open(options, host_->pool->view().FirstCopies(),
                                [this](const BlockEvent& event) { cache_->OnStoreEvent(event); }));
  metrics_.BeforeScrape([this, shown] { shown->Show(tiers_->stats(), cache_->stats()); });
  kv_admin_ = std::make_unique<KvAdmin>(KvAdmin::Parts{.pool = *host_->pool,
                                                       .cache = *cache_,
                                                       .store = *tiers_,
                                                       .operators = *operators_,
                                                       .nvme_dir = options_.nvme_dir,
                                                       .worker_id = options_.worker_id});
  tiers_->Start();
  cache_->AttachStore(tiers_.get());
  return absl::OkStatus();
}

void WorkerRuntime::DescribeTiers(v1::WorkerState* state) const {
  const StoreStats stats = tiers_->stats();
  if (stats.dram.bytes_total > 0) SetTierLoad(stats.dram, state->mutable_dram());
  if (stats.nvme.tier.bytes_total > 0) SetTierLoad(stats.nvme.tier, state->mutable_nvme());
}

}  // namespace penstock
