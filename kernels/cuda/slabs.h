#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "kernels/cuda/crc_tables.h"

namespace penstock::cuda {

constexpr int64_t kSlabChunkBytes = 16 << 10;  // of one partial checksum

// Bytes [offset, offset + piece_bytes) of some blocks of an arena, and the contiguous slab that has
// them one after the other. Device memory; all multiples of 16.
struct SlabParams {
  std::byte* arena = nullptr;  // null: nothing is moved, the slab is only summed
  int64_t block_stride = 0;
  int64_t offset = 0;
  uint32_t piece_bytes = 0;
  uint32_t blocks = 0;
  const uint32_t* block_ids = nullptr;  // [blocks]
  std::byte* slab = nullptr;
  uint32_t* partials = nullptr;  // [SlabChunks(bytes)], or null: no checksum
  bool scatter = false;          // from the slab to the arena
};
inline int64_t SlabChunks(int64_t bytes) { return (bytes + kSlabChunkBytes - 1) / kSlabChunkBytes; }

// Copies and, in the same pass, sums; at most 4 GiB. `processors` bounds the blocks of the launch,
// so that compute beside it keeps the rest.
void MoveSlab(const SlabParams& params, int processors, void* stream);

// The CRC32C (as Crc32c of kvstore/wire/slab.h) of the slab, from the partials on the host.
uint32_t SlabChecksum(std::span<const uint32_t> partials, int64_t bytes);
// The same with some bytes more, which are here.
uint32_t ContinueChecksum(uint32_t checksum, std::span<const std::byte> more);

}  // namespace penstock::cuda
