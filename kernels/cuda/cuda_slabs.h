#pragma once

#include <deque>
#include <memory>
#include <thread>
#include <vector>

#include "base/mutex.h"
#include "kernels/cuda/cuda_device.h"
#include "kernels/cuda/spread_pages.h"
#include "kernels/device_slabs.h"
#include "kernels/paged_kv.h"

namespace penstock::cuda {

// DeviceSlabs on CUDA. Gather runs on one stream and blocks its caller. Sum and Scatter run on a
// second stream; a thread of this object waits for several of them at a time. Both streams run
// beside compute, on few processors; that of Gather goes first, because KV that leaves late delays
// an answer, and compute fills a GPU. Thread-safe.
class CudaSlabs final : public DeviceSlabs {
 public:
  struct Options {
    size_t slab_bytes_max = size_t{64} << 20;
    int processors = 8;  // processors (SMs) that a copy may take from compute
  };

  // `device` and the arena of `pages` outlive the result. If the pages are spread over several
  // GPUs, `spread`, which outlives the result too, copies them, and slabs are in the memory of
  // `device`. Returns RESOURCE_EXHAUSTED if memory is short.
  static absl::StatusOr<std::unique_ptr<CudaSlabs>> Create(const CudaDevice& device,
                                                           const PagedKv& pages,
                                                           const Options& options,
                                                           SpreadPages* spread = nullptr);
  ~CudaSlabs() override;  // Drains.

  size_t slab_bytes_max() const override { return options_.slab_bytes_max; }
  std::byte* Allocate(size_t bytes) override;
  void Free(std::byte* memory, size_t bytes) override;
  std::byte* AllocatePinned(size_t bytes) override;
  void FreePinned(std::byte* memory, size_t bytes) override;
  void Gather(std::span<Gathering> slabs) override EXCLUDES(gather_mutex_);
  size_t gathered_at_once() const override;
  void ReadSlab(std::span<const std::byte> slab, std::byte* pinned) override
      EXCLUDES(gather_mutex_);
  void Sum(std::span<const std::byte> slab, std::function<void(uint32_t crc)> done) override
      EXCLUDES(mutex_);
  void SumFromHost(const std::byte* pinned, std::span<std::byte> slab,
                   std::function<void(uint32_t crc)> done) override EXCLUDES(mutex_);
  void Scatter(const Pieces& pieces, const std::byte* slab, std::function<void()> done) override
      EXCLUDES(mutex_);
  void Drain() override EXCLUDES(mutex_);

 private:
  // Buffers of one kernel launch beside pages and slab, on the device and on the host.
  struct LaunchBuffers {
    DeviceBuffer ids, partials;
    PinnedBuffer host_ids, host_partials, tail;
  };
  struct Lane {
    void* stream = nullptr;
    void* done = nullptr;                       // event
    std::unique_ptr<SpreadPages::Mover> mover;  // null: all pages are in this GPU's memory
  };
  struct Task {
    std::vector<uint32_t> pages = {};  // empty for a sum
    size_t offset = 0;
    size_t bytes = 0;  // bytes of each page; for a sum, of the slab
    std::byte* slab = nullptr;
    std::byte* pinned = nullptr;  // for a gather, a copy of the slab; for a sum, its source
    bool scatter = false;
    std::function<void(uint32_t crc)> done = {};

    size_t total() const { return pages.empty() ? bytes : pages.size() * bytes; }
  };

  CudaSlabs(const CudaDevice& device, const PagedKv& pages, const Options& options,
            SpreadPages* spread)
      : device_(device), pages_(pages), options_(options), spread_(spread) {}
  absl::StatusOr<LaunchBuffers> CreateBuffers() const;
  absl::StatusOr<std::vector<LaunchBuffers>> CreateAllBuffers() const;
  absl::StatusOr<Lane> OpenLane(bool high_priority) const;
  static void CloseLane(Lane& lane);
  absl::Status Open();
  void EnqueueMove(const Task& task, const LaunchBuffers& buffers, const Lane& lane) const;
  void Enqueue(const Task& task, const LaunchBuffers& buffers, const Lane& lane) const;
  static void MoveSpread(std::span<const Task> tasks, const Lane& lane);
  static uint32_t ChecksumOf(const Task& task, const LaunchBuffers& buffers);
  static void Await(const Lane& lane, const char* what);
  void GatherSome(std::span<Gathering> slabs) REQUIRES(gather_mutex_);
  void Add(Task task) EXCLUDES(mutex_);
  std::vector<Task> NextTasks() EXCLUDES(mutex_);
  void Run() EXCLUDES(mutex_);

  const CudaDevice& device_;
  const PagedKv pages_;
  const Options options_;
  SpreadPages* const spread_;  // null: all pages are in this GPU's memory

  Mutex gather_mutex_;  // serialises gathers
  Lane gather_ GUARDED_BY(gather_mutex_);
  std::vector<LaunchBuffers> gather_buffers_ GUARDED_BY(gather_mutex_);

  Lane lane_;  // used by thread_ only
  std::vector<LaunchBuffers> buffers_;
  Mutex mutex_;
  CondVar changed_;
  std::deque<Task> tasks_ GUARDED_BY(mutex_);  // bounded by the slabs that fit in memory
  size_t running_ GUARDED_BY(mutex_) = 0;
  bool stopping_ GUARDED_BY(mutex_) = false;
  std::thread thread_;
};

}  // namespace penstock::cuda
