#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "kernels/cuda/crc_tables.h"

namespace penstock::cuda {

constexpr int64_t kSlabChunkBytes = 16 << 10;  // bytes per partial checksum

// Bytes [offset, offset + piece_bytes) of some blocks of an arena, and the contiguous slab that
// holds them in sequence. All pointers are to device memory; all sizes are in bytes and multiples
// of 16.
struct SlabParams {
  std::byte* arena = nullptr;  // null: nothing is copied, the slab is only checksummed
  int64_t block_stride = 0;
  int64_t offset = 0;
  uint32_t piece_bytes = 0;
  uint32_t blocks = 0;
  const uint32_t* block_ids = nullptr;  // [blocks]
  std::byte* slab = nullptr;
  uint32_t* partials = nullptr;  // [SlabChunks(bytes)], or null: no checksum
  bool scatter = false;          // true: slab to arena; false: arena to slab
};
inline int64_t SlabChunks(int64_t bytes) { return (bytes + kSlabChunkBytes - 1) / kSlabChunkBytes; }

// Copies and computes checksums in one pass; at most 4 GiB. `processors` limits the blocks of the
// launch, so that concurrent compute keeps the other processors.
void MoveSlab(const SlabParams& params, int processors, void* stream);

// Combines the partials, copied to the host, into the CRC32C of the slab (as Crc32c of
// kvstore/wire/slab.h).
uint32_t SlabChecksum(std::span<const uint32_t> partials, int64_t bytes);
// Extends a checksum by bytes in host memory.
uint32_t ContinueChecksum(uint32_t checksum, std::span<const std::byte> more);

}  // namespace penstock::cuda
