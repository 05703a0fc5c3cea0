#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>

namespace penstock {

// Whose memory bytes are in. The CPU does not touch the device's.
enum class MemoryKind { kHost, kDevice };

// Slabs beside the pages of a GPU, in its own memory: what moves KV between the two there, so that
// it never passes the host. A seam (cuda/cuda_slabs.h). Fatal where the device fails: its pages are
// lost. Whoever calls knows that nothing else writes to what is read. Any thread.
class DeviceSlabs {
 public:
  // Bytes [offset, offset + bytes) of each of `pages`, one after the other in a slab; multiples
  // of 16.
  struct Pieces {
    std::span<const uint32_t> pages;
    size_t offset = 0;
    size_t bytes = 0;

    size_t total() const { return pages.size() * bytes; }
  };

  virtual ~DeviceSlabs() = default;
  virtual size_t slab_bytes_max() const = 0;

  // Memory for slabs, 4,096-byte aligned; nullptr where there is no room. To be freed when nothing
  // of it is in use.
  virtual std::byte* Allocate(size_t bytes) = 0;
  virtual void Free(std::byte* memory, size_t bytes) = 0;

  // From the pages, and sums in the same pass: returns the CRC32C of the slab when it is there. The
  // calling thread sleeps meanwhile.
  virtual uint32_t Gather(const Pieces& pieces, std::byte* slab) = 0;

  // These two return at once, and call back in order on a thread of their own, which must not be
  // blocked; slab and pages stay until then.
  virtual void Sum(std::span<const std::byte> slab, std::function<void(uint32_t crc)> done) = 0;
  virtual void Scatter(const Pieces& pieces, const std::byte* slab, std::function<void()> done) = 0;
  // Until everything has called back, and what that began, too. Not on that thread.
  virtual void Drain() = 0;
};

}  // namespace penstock
