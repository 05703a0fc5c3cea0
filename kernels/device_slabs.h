#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>

namespace penstock {

// The memory that a range of bytes lies in. The CPU never touches kDevice memory.
enum class MemoryKind { kHost, kDevice };

// Slabs (contiguous staging buffers for KV) in a GPU's own memory, beside its pages. It moves KV
// between pages and slabs on the GPU, so that the bytes never pass through the host. An interface,
// so that callers need no CUDA; cuda/cuda_slabs.h implements it. Thread-safe. The caller guarantees
// that no other work writes to the bytes that a call reads. A device error ends the process,
// because the pages are lost with the device.
class DeviceSlabs {
 public:
  // Bytes [offset, offset + bytes) of each of `pages`, which a slab stores one after the other.
  // Offset and bytes are multiples of 16.
  struct Pieces {
    std::span<const uint32_t> pages;
    size_t offset = 0;
    size_t bytes = 0;

    size_t total() const { return pages.size() * bytes; }
  };

  virtual ~DeviceSlabs() = default;
  // The largest slab, in bytes, that Gather, Sum and Scatter accept.
  virtual size_t slab_bytes_max() const = 0;

  // Allocates device memory for slabs, aligned to 4,096 bytes; nullptr if there is no room. The
  // caller frees it only when no operation uses it any more.
  virtual std::byte* Allocate(size_t bytes) = 0;
  virtual void Free(std::byte* memory, size_t bytes) = 0;
  // Allocates page-locked host memory for copies of slabs: ordinary pages, which other processes
  // and the kernel read as any; nullptr if there is no room.
  virtual std::byte* AllocatePinned(size_t bytes) = 0;
  virtual void FreePinned(std::byte* memory, size_t bytes) = 0;

  // One slab to be gathered from pages.
  struct Gathering {
    Pieces pieces;
    std::byte* slab = nullptr;
    std::byte* pinned = nullptr;  // page-locked memory for a copy of the slab; null: no copy
    uint32_t crc = 0;             // result: CRC32C of the slab
  };
  // Copies pieces into slabs, and computes the checksums in the same pass. Blocks the calling
  // thread (it sleeps) until all are complete, with one wait for up to gathered_at_once() of them.
  virtual void Gather(std::span<Gathering> slabs) = 0;
  virtual size_t gathered_at_once() const = 0;
  // Copies the slab to page-locked memory. Blocks as Gather does.
  virtual void ReadSlab(std::span<const std::byte> slab, std::byte* pinned) = 0;

  // The calls below return at once. They call `done` in the order of the calls, on a thread of this
  // object, which a callback must not block. Slab and pages must stay valid until then.
  virtual void Sum(std::span<const std::byte> slab, std::function<void(uint32_t crc)> done) = 0;
  // As Sum, but first copies the slab from page-locked memory.
  virtual void SumFromHost(const std::byte* pinned, std::span<std::byte> slab,
                           std::function<void(uint32_t crc)> done) = 0;
  virtual void Scatter(const Pieces& pieces, const std::byte* slab, std::function<void()> done) = 0;
  // Blocks until every callback, and every operation that a callback started, has finished. Must
  // not be called from a callback.
  virtual void Drain() = 0;
};

}  // namespace penstock
