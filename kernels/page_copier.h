#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>

#include "kernels/paged_kv.h"

namespace penstock {

// How the host gets at pages that are not in its own memory but a GPU's. Calls return when all is
// copied; whoever calls knows that nothing else writes to what is copied, the GPU's own work
// included. Fatal where the device fails: what it held is lost. Any thread.
class PageCopier {
 public:
  virtual ~PageCopier() = default;
  // Bytes [offset, offset + bytes) of each of `pages`, one after the other, to or from `host`.
  virtual void Read(std::span<const uint32_t> pages, size_t offset, size_t bytes,
                    std::byte* host) = 0;
  virtual void Write(std::span<const uint32_t> pages, size_t offset, size_t bytes,
                     const std::byte* host) = 0;
};

// The same of pages wherever they are.
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
