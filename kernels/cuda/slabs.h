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

// The heads that one of several GPUs has of some pages, and a slab of whole pages, which may be in
// another GPU's memory that this one accesses, or in page-locked memory of the host. `layers`
// layers of one size are copied, which lie at equal distances. Each has the codes of the GPU's
// heads and then their scales. All sizes are in bytes and multiples of 16.
struct SlabPartParams {
  std::byte* arena = nullptr;
  int64_t block_stride = 0;
  int64_t offset = 0;  // of the first layer in a block
  uint32_t blocks = 0;
  uint32_t layers = 0;
  const uint32_t* block_ids = nullptr;  // [blocks]
  int64_t layer_stride = 0;             // from one layer to the next in a block
  uint32_t layer_bytes = 0;             // of this GPU's heads
  uint32_t codes_bytes = 0;             // of these; the rest are scales
  std::byte* slab = nullptr;            // the first layer of the first block, with all heads
  uint32_t slab_block_stride = 0;       // from one block to the next in the slab
  uint32_t slab_layer_stride = 0;       // from one layer to the next
  uint32_t codes_at = 0;                // in a layer of the slab
  uint32_t scales_at = 0;
  bool scatter = false;  // true: slab to arena; false: arena to slab
};
// Copies them, at most 4 GiB; other bytes of the slab stay. `processors` as above.
void MoveSlabPart(const SlabPartParams& params, int processors, void* stream);

// Combines the partials, copied to the host, into the CRC32C of the slab (as Crc32c of
// kvstore/wire/slab.h).
uint32_t SlabChecksum(std::span<const uint32_t> partials, int64_t bytes);
// Extends a checksum by bytes in host memory.
uint32_t ContinueChecksum(uint32_t checksum, std::span<const std::byte> more);

}  // namespace penstock::cuda
