#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <vector>

#include "base/mutex.h"
#include "kernels/cuda/cuda_device.h"
#include "kernels/cuda/page_pieces.h"
#include "kernels/page_copier.h"

namespace penstock::cuda {

// Owns an arena of pages in device memory. Thread-safe; one copy runs at a time. Pages that the
// host reads or writes are gathered to, or scattered from, a slab on a stream of its own, beside
// the GPU's other work. The slab crosses PCIe through a ring of page-locked memory: while one slot
// is being transferred, the host copies another.
class CudaPages final : public PageCopier {
 public:
  struct Options {
    size_t slot_bytes = size_t{4} << 20;  // size of a ring slot in bytes; a multiple of 4,096
    int slots = 3;
    int processors = 8;  // processors (SMs) that a copy may take from compute
  };

  // Memory for `rows` rows of a window group behind that of the blocks' other layers. 0: each block
  // has memory for all layers.
  struct Room {
    int64_t blocks = 0;
    int64_t rows = 0;
  };

  // `device` outlives the result. Returns RESOURCE_EXHAUSTED if memory is short, naming the
  // allocation, and INVALID_ARGUMENT if a piece of the layout is not a multiple of 16 bytes.
  static absl::StatusOr<std::unique_ptr<CudaPages>> Create(const CudaDevice& device,
                                                           const KvLayout& layout, const Room& room,
                                                           const Options& options);
  static absl::StatusOr<std::unique_ptr<CudaPages>> Create(const CudaDevice& device,
                                                           const KvLayout& layout, int64_t blocks) {
    return Create(device, layout, {.blocks = blocks}, Options());
  }
  ~CudaPages() override;

  const PagedKv& view() const { return view_; }
  // Says where each block's row is. Called once, before the pages are used, if they have room for
  // rows. `rows` belongs to the pool, and outlives every use of the pages.
  void SetRows(const WindowRowsView* rows) { view_.rows = rows; }

  // Offset and bytes are multiples of 16.
  void Read(std::span<const uint32_t> pages, size_t offset, size_t bytes, std::byte* host) override
      EXCLUDES(mutex_);
  void Write(std::span<const uint32_t> pages, size_t offset, size_t bytes,
             const std::byte* host) override EXCLUDES(mutex_);
  PageCopier* first_copies() override;

  // Read and Write for callers that scatter the host bytes themselves. `move` copies `bytes` bytes
  // between `ring` and the place that belongs to bytes [at, at + bytes) of the piece of
  // pages[index].
  struct Portion {
    size_t index = 0;
    size_t at = 0;
    size_t bytes = 0;
    std::byte* ring = nullptr;
  };
  using Move = std::function<void(const Portion&)>;
  // Offsets count all layers, or the first copies alone (PagedKv::FirstCopies).
  enum class Copies : uint8_t { kAll, kFirst };
  void ReadBy(std::span<const uint32_t> pages, size_t offset, size_t bytes, const Move& move,
              Copies copies) {
    ReadBy(copies == Copies::kFirst ? FirstView() : view_, pages, offset, bytes, move);
  }
  void WriteBy(std::span<const uint32_t> pages, size_t offset, size_t bytes, const Move& move,
               Copies copies) {
    WriteBy(copies == Copies::kFirst ? FirstView() : view_, pages, offset, bytes, move);
  }

 private:
  // The same pages without their second copies.
  class FirstCopier final : public PageCopier {
   public:
    explicit FirstCopier(CudaPages& of) : of_(of) {}
    void Read(std::span<const uint32_t> pages, size_t offset, size_t bytes,
              std::byte* host) override {
      of_.ReadOf(of_.FirstView(), pages, offset, bytes, host);
    }
    void Write(std::span<const uint32_t> pages, size_t offset, size_t bytes,
               const std::byte* host) override {
      of_.WriteOf(of_.FirstView(), pages, offset, bytes, host);
    }

   private:
    CudaPages& of_;
  };

  // The part of a copy that one slot holds: the bytes of a piece of some pages.
  struct Chunk {
    PagePiece piece;
    std::span<const uint32_t> ids;  // of the pages, or of their rows
    size_t index = 0;               // of the first page in the caller's list

    size_t total() const { return ids.size() * piece.bytes; }
  };
  struct Copy {
    std::vector<uint32_t> rows;  // of the pages
    std::vector<Chunk> chunks;
  };
  // One ring slot: page ids and page bytes, in device and in page-locked memory.
  struct Slot {
    DeviceBuffer device_ids, device_slab;
    PinnedBuffer ids, slab;
    void* done = nullptr;        // event: the transfer is complete
    std::optional<Chunk> chunk;  // the chunk in transfer, if any
  };

  CudaPages(const CudaDevice& device, const Options& options)
      : device_(device), options_(options) {}
  absl::Status Allocate(const KvLayout& layout, const Room& room);
  void AddChunks(const PagePiece& piece, std::span<const uint32_t> ids,
                 std::vector<Chunk>& chunks) const;
  PagedKv FirstView() const;
  void ReadOf(const PagedKv& kv, std::span<const uint32_t> pages, size_t offset, size_t bytes,
              std::byte* host);
  void WriteOf(const PagedKv& kv, std::span<const uint32_t> pages, size_t offset, size_t bytes,
               const std::byte* host);
  void ReadBy(const PagedKv& kv, std::span<const uint32_t> pages, size_t offset, size_t bytes,
              const Move& move) EXCLUDES(mutex_);
  void WriteBy(const PagedKv& kv, std::span<const uint32_t> pages, size_t offset, size_t bytes,
               const Move& move) EXCLUDES(mutex_);
  Copy Plan(const PagedKv& kv, std::span<const uint32_t> pages, size_t offset, size_t bytes,
            PageAccess access) const;
  void Launch(const Slot& slot, const Chunk& chunk, bool scatter);
  void Take(Slot& slot, const Move& move);
  static void Visit(const Slot& slot, const Chunk& chunk, const Move& move);

  const CudaDevice& device_;
  const Options options_;
  DeviceBuffer arena_;
  PagedKv view_;
  FirstCopier first_copier_{*this};
  Mutex mutex_;  // serialises copies
  std::vector<Slot> slots_ GUARDED_BY(mutex_);
  void* stream_ = nullptr;
};

}  // namespace penstock::cuda
