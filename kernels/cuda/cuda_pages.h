#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <vector>

#include "base/mutex.h"
#include "kernels/cuda/cuda_device.h"
#include "kernels/page_copier.h"

namespace penstock::cuda {

// An arena of pages in device memory. What the host reads or writes of it is gathered to a slab, or
// scattered from one, on a stream of its own beside the GPU's other work, and goes through a ring
// of page-locked memory: while one slot is on its way, the host copies another.
class CudaPages final : public PageCopier {
 public:
  struct Options {
    size_t slot_bytes = size_t{4} << 20;  // of the ring; a multiple of 4,096
    int slots = 3;
    int processors = 8;  // that a copy may take from compute
  };

  // `device` outlives it. RESOURCE_EXHAUSTED names what found no room; INVALID_ARGUMENT a layout
  // whose pieces are no multiples of 16 bytes.
  static absl::StatusOr<std::unique_ptr<CudaPages>> Create(const CudaDevice& device,
                                                           const KvLayout& layout, int64_t blocks,
                                                           const Options& options);
  static absl::StatusOr<std::unique_ptr<CudaPages>> Create(const CudaDevice& device,
                                                           const KvLayout& layout, int64_t blocks) {
    return Create(device, layout, blocks, Options());
  }
  ~CudaPages() override;

  const PagedKv& view() const { return view_; }

  // Offsets and sizes are multiples of 16.
  void Read(std::span<const uint32_t> pages, size_t offset, size_t bytes, std::byte* host) override
      EXCLUDES(mutex_);
  void Write(std::span<const uint32_t> pages, size_t offset, size_t bytes,
             const std::byte* host) override EXCLUDES(mutex_);

  // The same where the host has the bytes in places of its own: `move` copies `bytes` between the
  // ring, at `ring`, and where those from `at` on of the piece of pages[index] belong.
  struct Portion {
    size_t index = 0;
    size_t at = 0;
    size_t bytes = 0;
    std::byte* ring = nullptr;
  };
  using Move = std::function<void(const Portion&)>;
  void ReadBy(std::span<const uint32_t> pages, size_t offset, size_t bytes, const Move& move)
      EXCLUDES(mutex_);
  void WriteBy(std::span<const uint32_t> pages, size_t offset, size_t bytes, const Move& move)
      EXCLUDES(mutex_);

 private:
  // A part of a copy that one slot holds: bytes [offset, offset + bytes) of some pages.
  struct Chunk {
    std::span<const uint32_t> pages;
    size_t offset = 0;
    size_t bytes = 0;
    size_t index = 0;  // of the first page
    size_t at = 0;     // from the start of each page's piece

    size_t total() const { return pages.size() * bytes; }
  };
  // The ids of pages and what they hold, here and there.
  struct Slot {
    DeviceBuffer device_ids, device_slab;
    PinnedBuffer ids, slab;
    void* done = nullptr;        // event
    std::optional<Chunk> chunk;  // that is on its way
  };

  CudaPages(const CudaDevice& device, const Options& options)
      : device_(device), options_(options) {}
  absl::Status Allocate(const KvLayout& layout, int64_t blocks);
  std::vector<Chunk> Chunks(std::span<const uint32_t> pages, size_t offset, size_t bytes) const;
  void Launch(const Slot& slot, const Chunk& chunk, bool scatter);
  void Take(Slot& slot, const Move& move);
  static void Visit(const Slot& slot, const Chunk& chunk, const Move& move);

  const CudaDevice& device_;
  const Options options_;
  DeviceBuffer arena_;
  PagedKv view_;
  Mutex mutex_;  // one copy at a time
  std::vector<Slot> slots_ GUARDED_BY(mutex_);
  void* stream_ = nullptr;
};

}  // namespace penstock::cuda
