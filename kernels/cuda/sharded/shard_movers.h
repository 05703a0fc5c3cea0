#pragma once

#include <atomic>
#include <map>
#include <vector>

#include "base/mutex.h"
#include "kernels/cuda/sharded/sharded_pages.h"
#include "kernels/cuda/spread_pages.h"

namespace penstock::cuda {

// Moves slabs whose pages have their heads in several GPUs, and which are in the memory of the
// first. Each GPU's kernel copies its heads to their places in the slab, or back. Of latents, which
// every GPU has, the first GPU alone fills slabs, and all of them read a slab. Where a GPU has
// no peer access to the first one's memory, slabs take a detour: the kernels work on a copy in
// page-locked host memory, which the first GPU copies to its own, or from there. Thread-safe.
class ShardMovers final : public SpreadPages {
 public:
  using Devices = std::vector<const CudaDevice*>;

  // devices[i] has pages.view_of(i); they and `pages` outlive the result. Tries peer access.
  // FAILED_PRECONDITION if heads have bytes that the kernels do not copy.
  static absl::StatusOr<std::unique_ptr<ShardMovers>> Create(Devices devices,
                                                             const ShardedPages& pages,
                                                             int processors = 8);

  // OK if all GPUs access the first one's memory; else which does not, and why: slabs take the
  // detour.
  const absl::Status& peer_access() const { return peer_access_; }
  // Slabs that took the detour.
  uint64_t detours() const { return detours_; }

  absl::StatusOr<std::unique_ptr<Mover>> OpenMover(size_t moves_max, size_t slab_bytes_max,
                                                   bool high_priority) override;
  bool OnAllocated(std::byte* memory, size_t bytes) override EXCLUDES(mutex_);
  void OnFreed(std::byte* memory) override EXCLUDES(mutex_);

 private:
  class RankMover;

  ShardMovers(Devices devices, const ShardedPages& pages, int processors);
  // The place of a slab's copy in page-locked memory; null if slabs take no detour.
  std::byte* DetourOf(std::byte* slab) EXCLUDES(mutex_);

  const Devices devices_;
  const ShardedPages& pages_;
  const int processors_;
  const absl::Status peer_access_;
  std::atomic<uint64_t> detours_ = 0;
  Mutex mutex_;
  // As large as the memory for slabs, by its address.
  std::map<std::byte*, PinnedBuffer> detour_memory_ GUARDED_BY(mutex_);
};

}  // namespace penstock::cuda
