#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>

#include "kernels/kv_pager.h"
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
  // The copier of PagedKv::FirstCopies, whose offsets count these alone. Null: the pages have none,
  // or have them not apart.
  virtual PageCopier* first_copies() { return nullptr; }
};

// Calls `copy(page, at, bytes)` for the pieces that bytes [offset, offset + bytes) of a block lie
// in when its layers are in different places; `page` is null where it has no memory, and behind its
// last layer. `at` counts from `offset`.
template <class Copy>
void ForEachPiece(const PagedKv& kv, uint32_t block, size_t offset, size_t bytes,
                  const Copy& copy) {
  for (size_t at = 0; at < bytes;) {
    const int32_t layer = kv.layout.LayerAt(offset + at);
    const size_t within = offset + at - kv.layout.BytesBefore(layer);
    const bool behind = layer >= kv.layout.layers;
    const size_t piece =
        behind ? bytes - at : std::min(bytes - at, kv.layout.BytesOf(layer) - within);
    const bool here = !behind && kv.Has(block, layer);
    copy(here ? kv.Layer(block, layer) + within : nullptr, at, piece);
    at += piece;
  }
}

// Tells the pager, if there is one, that bytes [offset, offset + bytes) of blocks will be read.
inline void WantBytes(const PagedKv& kv, std::span<const uint32_t> blocks, size_t offset,
                      size_t bytes) {
  if (kv.pager == nullptr) return;
  const size_t end = std::min(offset + bytes, kv.layout.PayloadBytes());
  for (int32_t layer = kv.layout.LayerAt(offset); kv.layout.BytesBefore(layer) < end; ++layer) {
    kv.pager->OnWanted(blocks, layer);
  }
}

// Read and Write for pages in either host or device memory. Layers of the window group in a block
// without a row are read as zeros, and are not written.
inline void ReadPages(const PagedKv& kv, std::span<const uint32_t> pages, size_t offset,
                      size_t bytes, std::byte* host) {
  if (kv.copier != nullptr) return kv.copier->Read(pages, offset, bytes, host);
  WantBytes(kv, pages, offset, bytes);
  for (const uint32_t page : pages) {
    if (kv.rows == nullptr) {
      std::memcpy(host, kv.Block(page) + offset, bytes);
    } else {
      ForEachPiece(kv, page, offset, bytes, [host](const std::byte* from, size_t at, size_t piece) {
        if (from != nullptr) std::memcpy(host + at, from, piece);
        if (from == nullptr) std::memset(host + at, 0, piece);
      });
    }
    host += bytes;
  }
}
inline void WritePages(const PagedKv& kv, std::span<const uint32_t> pages, size_t offset,
                       size_t bytes, const std::byte* host) {
  if (kv.copier != nullptr) return kv.copier->Write(pages, offset, bytes, host);
  for (const uint32_t page : pages) {
    if (kv.rows == nullptr) {
      std::memcpy(kv.Block(page) + offset, host, bytes);
    } else {
      ForEachPiece(kv, page, offset, bytes, [host](std::byte* to, size_t at, size_t piece) {
        if (to != nullptr) std::memcpy(to, host + at, piece);
      });
    }
    host += bytes;
  }
}

// The second copies (KvLayout::span) of blocks that have rows, to and from host memory: for each
// layer of the model those of all blocks, RowPayloadBytes of the layout for each block.
inline void ReadRows(const PagedKv& kv, std::span<const uint32_t> blocks, std::byte* host) {
  const size_t bytes = kv.layout.RecentBytes();
  for (int32_t layer = 1; layer < kv.layout.layers; layer += 2, host += blocks.size() * bytes) {
    ReadPages(kv, blocks, kv.layout.BytesBefore(layer), bytes, host);
  }
}
inline void WriteRows(const PagedKv& kv, std::span<const uint32_t> blocks, const std::byte* host) {
  const size_t bytes = kv.layout.RecentBytes();
  for (int32_t layer = 1; layer < kv.layout.layers; layer += 2, host += blocks.size() * bytes) {
    WritePages(kv, blocks, kv.layout.BytesBefore(layer), bytes, host);
  }
}

}  // namespace penstock
