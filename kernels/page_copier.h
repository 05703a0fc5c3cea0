#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>

#include "kernels/paged_kv.h"

namespace penstock {

// Copies pages that lie in a GPU's memory to and from host memory. Thread-safe. A call returns when
// the copy is complete. The caller guarantees that no other work, including the GPU's own, writes
// to the bytes that a call copies. A device error ends the process, because the pages are lost with
// the device.
class PageCopier {
 public:
  virtual ~PageCopier() = default;
  // Copies bytes [offset, offset + bytes) of each of `pages`, stored one after the other at `host`.
  virtual void Read(std::span<const uint32_t> pages, size_t offset, size_t bytes,
                    std::byte* host) = 0;
  virtual void Write(std::span<const uint32_t> pages, size_t offset, size_t bytes,
                     const std::byte* host) = 0;
};

// Read and Write for pages in either host or device memory.
inline void ReadPages(const PagedKv& kv, std::span<const uint32_t> pages, size_t offset,
                      size_t bytes, std::byte* host) {
  if (kv.copier != nullptr) return kv.copier->Read(pages, offset, bytes, host);
  for (const uint32_t page : pages) {
    std::memcpy(host, kv.Block(page) + offset, bytes);
    host += bytes;
  }
}
inline void WritePages(const PagedKv& kv, std::span<const uint32_t> pages, size_t offset,
                       size_t bytes, const std::byte* host) {
  if (kv.copier != nullptr) return kv.copier->Write(pages, offset, bytes, host);
  for (const uint32_t page : pages) {
    std::memcpy(kv.Block(page) + offset, host, bytes);
    host += bytes;
  }
}

}  // namespace penstock
