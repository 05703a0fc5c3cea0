#pragma once

// Gathers scattered pieces into one slab, or scatters a slab, 16 bytes a lane, with CRC32C in the
// same pass.

#include "kernels/cuda/device/crc.cuh"
#include "kernels/cuda/slabs.h"

namespace penstock::cuda {

constexpr int kSlabWarps = 8;

struct SlabKernelParams {
  SlabParams slab;
  CrcTables tables;
  uint32_t chunks = 0;
  uint32_t warps = 0;  // of the whole grid
  // Zero bytes before the slab, so that the last chunk ends where the slab ends.
  uint32_t padding = 0;
};

struct SlabLane {
  const SlabKernelParams& p;
  CrcLane crc;

  PENSTOCK_DEVICE Words4 Move(uint32_t at) const {
    const SlabParams& s = p.slab;
    std::byte* flat = s.slab + at;
    if (s.arena == nullptr) return *reinterpret_cast<const Words4*>(flat);
    const uint32_t block = at / s.piece_bytes, within = at % s.piece_bytes;
    std::byte* piece =
        s.arena + static_cast<int64_t>(s.block_ids[block]) * s.block_stride + s.offset + within;
    const Words4 words = *reinterpret_cast<const Words4*>(s.scatter ? flat : piece);
    *reinterpret_cast<Words4*>(s.scatter ? piece : flat) = words;
    return words;
  }

  PENSTOCK_DEVICE void Chunk(uint32_t chunk) const {
    constexpr int kRows = kSlabChunkBytes / kCrcRowBytes, kAhead = 4;
    uint32_t state = 0;
    for (int row = 0; row < kRows; row += kAhead) {
      Words4 words[kAhead];
      PENSTOCK_UNROLL
      for (int i = 0; i < kAhead; ++i) {
        const uint64_t at = static_cast<uint64_t>(chunk) * kSlabChunkBytes +
                            (row + i) * kCrcRowBytes + crc.lane * 16;
        words[i] = Words4{};
        if (at >= p.padding) words[i] = Move(static_cast<uint32_t>(at - p.padding));
      }
      if (p.slab.partials == nullptr) continue;
      PENSTOCK_UNROLL
      for (int i = 0; i < kAhead; ++i) state = crc.Add(state, words[i]);
    }
    if (p.slab.partials == nullptr) return;
    const uint32_t sum = crc.Close(p.tables, state);
    if (crc.lane == 0) p.slab.partials[chunk] = sum;
  }
};

// Any grid; its warps share the chunks.
__global__ void __launch_bounds__(kSlabWarps * 32)
    SlabKernel(const __grid_constant__ SlabKernelParams p) {
  auto* tables = reinterpret_cast<uint32_t*>(SharedMemory());
  if (p.slab.partials != nullptr) {
    FillCrcTables(p.tables, kSlabWarps * 32, tables);
    SyncBlock();
  }
  const int lane = ThreadX() % 32;
  const SlabLane self{p, {tables + lane, lane}};
  for (uint32_t chunk = BlockX() * kSlabWarps + ThreadX() / 32; chunk < p.chunks;
       chunk += p.warps) {
    self.Chunk(chunk);
  }
}

}  // namespace penstock::cuda
