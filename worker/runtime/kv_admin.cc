#include "worker/runtime/kv_admin.h"

#include <grpcpp/grpcpp.h>

#include <atomic>
#include <thread>
#include <utility>

#include "base/mutex.h"
#include "base/rpc/rpc_server.h"
#include "kvstore/tiers/store_admin.h"
#include "proto/kv_admin.grpc.pb.h"

namespace penstock {
namespace {

v1::KvTierStats* AddTier(v1::KvTier name, const TierStats& stats, v1::KvStats* all) {
  v1::KvTierStats* tier = all->add_tiers();
  tier->set_tier(name);
  tier->set_capacity_bytes(stats.bytes_total);
  tier->set_used_bytes(stats.bytes_used);
  tier->set_blocks(stats.blocks);
  tier->set_hits(stats.hits);
  tier->set_spills(stats.spills);
  tier->set_restores(stats.restores);
  for (size_t i = 0; i < stats.evictions.size(); ++i) {
    const char* reason = EvictionReasonName(static_cast<EvictionReason>(i));
    (*tier->mutable_evictions())[reason] = stats.evictions[i];
  }
  return tier;
}

void SetDevice(const BlockPool& pool, const WorkerCacheStats& stats, v1::KvTierStats* tier) {
  const uint64_t block_bytes = pool.block_bytes();
  tier->set_tier(v1::DEVICE);
  tier->set_capacity_bytes(static_cast<uint64_t>(pool.blocks_total()) * block_bytes);
  tier->set_used_bytes(static_cast<uint64_t>(pool.blocks_total() - pool.blocks_free()) *
                       block_bytes);
  tier->set_blocks(static_cast<uint64_t>(stats.blocks));
  tier->set_hits(stats.device.hit);
  tier->set_misses(stats.missed[0]);
  (*tier->mutable_evictions())["capacity"] = stats.device.evicted - stats.device.evicted_pinned;
  (*tier->mutable_evictions())["pinned"] = stats.device.evicted_pinned;
}

void SetNvme(const std::string& directory, const StoreStats& stats, v1::KvNvmeStats* nvme) {
  nvme->set_directory(directory);
  nvme->set_io(stats.io_backend);
  nvme->set_serving(stats.nvme.serving);
  nvme->set_writing(stats.nvme.writing);
  nvme->set_segments(stats.nvme.segments);
  nvme->set_bytes_admitted(stats.nvme.bytes_admitted);
  nvme->set_bytes_written(stats.nvme.bytes_written);
  nvme->set_write_amplification(stats.nvme.write_amplification());
  nvme->set_corrupt(stats.nvme.corrupt);
  nvme->set_torn(stats.nvme.torn);
  nvme->set_foreign_segments(stats.nvme.foreign);
  nvme->set_read_errors(stats.nvme.read_errors);
  nvme->set_write_errors(stats.nvme.write_errors);
  nvme->set_late_reads(stats.nvme.late_reads);
  nvme->set_index_bytes(stats.nvme.index_bytes);
  nvme->set_rebuild_s(stats.nvme.rebuild_s);
}

void SetSegment(const SegmentReport& report, v1::KvSegment* segment) {
  segment->set_name(report.name);
  segment->set_writer(report.writer);
  segment->set_held(report.held);
  segment->set_sealed(report.sealed);
  segment->set_bytes(report.bytes);
  segment->set_blocks(report.blocks);
  segment->set_block_bytes(report.block_bytes);
  segment->set_damaged(report.damaged);
  segment->set_torn(report.torn);
  segment->mutable_codecs()->insert(report.codecs.begin(), report.codecs.end());
  segment->set_model_fingerprint(report.model_fingerprint);
  segment->set_layout(report.layout);
  segment->set_error(report.error);
  segment->set_verified(report.verified);
  segment->set_corrupt(report.corrupt);
}

}  // namespace

class KvAdmin::Impl final : public v1::KvAdmin::CallbackService {
 public:
  explicit Impl(Parts parts) : parts_(std::move(parts)) {}
  ~Impl() override { Stop(); }

  void Stop() {
    stopping_ = true;
    MutexLock lock(mutex_);
    if (reader_.joinable()) reader_.join();
  }

  grpc::ServerUnaryReactor* Stats(grpc::CallbackServerContext* context, const v1::KvStatsRequest*,
                                  v1::KvStats* stats) override {
    Fill(stats);
    auto* reactor = context->DefaultReactor();
    reactor->Finish(grpc::Status::OK);
    return reactor;
  }

  grpc::ServerUnaryReactor* Inspect(grpc::CallbackServerContext* context,
                                    const v1::KvInspectRequest* request,
                                    v1::KvDirectory* directory) override {
    auto* reactor = context->DefaultReactor();
    const absl::Status begun =
        BeginRead([this, reactor, context, directory, verify = request->verify()] {
          reactor->Finish(ToGrpcStatus(Read(*context, verify, directory)));
        });
    if (!begun.ok()) reactor->Finish(ToGrpcStatus(begun));
    return reactor;
  }

  grpc::ServerUnaryReactor* Flush(grpc::CallbackServerContext* context, const v1::KvFlushRequest*,
                                  v1::KvFlushed* flushed) override {
    auto* reactor = context->DefaultReactor();
    if (const absl::Status may = parts_.operators.Check(*context); !may.ok()) {
      reactor->Finish(ToGrpcStatus(may));
      return reactor;
    }
    flushed->set_blocks(static_cast<uint64_t>(parts_.cache.Clear()) + BlocksBelow());
    parts_.store.Clear([reactor] { reactor->Finish(grpc::Status::OK); });
    return reactor;
  }

 private:
  uint64_t BlocksBelow() const {
    const StoreStats stats = parts_.store.stats();
    return stats.dram.blocks + stats.nvme.tier.blocks;
  }

  void Fill(v1::KvStats* all) const {
    const StoreStats stats = parts_.store.stats();
    const WorkerCacheStats cache = parts_.cache.stats();
    all->set_worker_id(parts_.worker_id);
    all->set_block_bytes(parts_.pool.view().layout.BlockStride());
    SetDevice(parts_.pool, cache, all->add_tiers());
    if (stats.dram.bytes_total > 0) {
      AddTier(v1::DRAM, stats.dram, all)->set_misses(cache.missed[1]);
    }
    if (!parts_.nvme_dir.empty()) {
      AddTier(v1::NVME, stats.nvme.tier, all)->set_misses(cache.missed[2]);
      SetNvme(parts_.nvme_dir, stats, all->mutable_nvme());
    }
    all->set_swapped_blocks(stats.swap_slots);
    all->set_swaps_out(stats.swaps_out);
    all->set_swaps_in(stats.swaps_in);
    all->set_swaps_refused(stats.swaps_refused);
    all->set_spills_refused(stats.spills_refused);
    all->set_spills_dropped(stats.spills_dropped);
    all->set_demotions_dropped(stats.demotions_dropped);
    all->set_dram_corrupt(stats.dram_corrupt);
  }

  // Runs `read` on a thread of its own, one at a time, because a directory may take minutes.
  absl::Status BeginRead(std::function<void()> read) EXCLUDES(mutex_) {
    if (parts_.nvme_dir.empty())
      return FailedPrecondition("this worker has no NVMe tier; start it with --nvme_dir");
    MutexLock lock(mutex_);
    if (stopping_) return Unavailable("the worker is shutting down");
    if (reading_) return ResourceExhausted("the directory is being read for another call; retry");
    if (reader_.joinable()) reader_.join();
    reading_ = true;
    reader_ = std::thread([this, read = std::move(read)] {
      read();
      reading_ = false;
    });
    return absl::OkStatus();
  }

  absl::Status Read(const grpc::CallbackServerContext& context, bool verify,
                    v1::KvDirectory* directory) const {
    const auto go_on = [&](const std::string&) { return !stopping_ && !context.IsCancelled(); };
    ASSIGN_OR_RETURN(const StoreReport report, verify ? VerifyStore(parts_.nvme_dir, go_on)
                                                      : InspectStore(parts_.nvme_dir, go_on));
    directory->set_directory(report.directory);
    for (const SegmentReport& segment : report.segments) {
      SetSegment(segment, directory->add_segments());
    }
    return absl::OkStatus();
  }

  const Parts parts_;
  std::atomic<bool> stopping_{false};
  std::atomic<bool> reading_{false};
  Mutex mutex_;
  std::thread reader_ GUARDED_BY(mutex_);
};

KvAdmin::KvAdmin(Parts parts) : impl_(std::make_unique<Impl>(std::move(parts))) {}
KvAdmin::~KvAdmin() = default;
grpc::Service* KvAdmin::service() { return impl_.get(); }
void KvAdmin::Stop() { impl_->Stop(); }

}  // namespace penstock
