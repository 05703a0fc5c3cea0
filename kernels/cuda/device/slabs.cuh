#pragma once

// Gathers scattered pieces into one slab, or scatters a slab, 16 bytes a lane, with CRC32C in the
// same pass.

#include "kernels/cuda/device/crc.cuh"
#include "kernels/cuda/slabs.h"

namespace penstock::cuda {

constexpr int kSlabWarps = 8;
constexpr uint32_t kSlabAhead = 4;  // rows that a warp loads at once
static_assert(kCrcPartRows % kSlabAhead == 0);

struct SlabKernelParams {
  SlabParams slab;
  CrcTables tables;
  uint32_t chunks = 0;
  uint32_t blocks = 0;  // of the grid
  // Zero bytes before the slab, so that the last chunk ends where the slab ends.
  uint32_t padding = 0;
  // The chunks that remain after all warps have had the same number are divided into this many
  // parts each, at most kCrcParts; there is a warp for every part, and the warps of a chunk are
  // neighbours in a block.
  uint32_t parts = 1;
};
static_assert(kSlabChunkBytes == kCrcChunkRows * kCrcRowBytes);

enum class SlabMove { kNone, kGather, kScatter };

// The bytes of this lane in consecutive rows of the slab, and the pieces that they belong to.
template <SlabMove kMove>
struct SlabRows {
  const SlabParams& slab;
  uint32_t flat;         // offset of row 0 in the slab; wraps below zero in the padding
  uint32_t padding = 0;  // number of rows before the slab
  // The next row in the arena.
  uint32_t block = 0, within = 0;
  std::byte* piece;

  PENSTOCK_DEVICE SlabRows(const SlabKernelParams& p, uint32_t chunk, uint32_t row)
      : slab(p.slab), piece(p.slab.arena) {
    const uint32_t in_chunk = row * kCrcRowBytes + static_cast<uint32_t>(ThreadX()) % 32 * 16;
    flat = chunk * static_cast<uint32_t>(kSlabChunkBytes) + in_chunk - p.padding;
    if (chunk == 0 && in_chunk < p.padding) {
      padding = (p.padding - in_chunk + kCrcRowBytes - 1) / kCrcRowBytes;
    }
    if constexpr (kMove != SlabMove::kNone) {
      const uint32_t start = flat + padding * kCrcRowBytes;
      block = start / slab.piece_bytes;
      within = start % slab.piece_bytes;
      FindPiece();
    }
  }

  // Loads kSlabAhead rows; rows of the padding are zeros.
  PENSTOCK_DEVICE void Load(uint32_t row, Words4 (&words)[kSlabAhead]) {
    std::byte* from[kSlabAhead];
    kMove == SlabMove::kGather ? InArena(row, from) : InSlab(row, from);
    PENSTOCK_UNROLL
    for (uint32_t i = 0; i < kSlabAhead; ++i) {
      words[i] = row + i < padding ? Words4{} : LoadStreaming(from[i]);
    }
  }
  PENSTOCK_DEVICE void Save(uint32_t row, const Words4 (&words)[kSlabAhead]) {
    if constexpr (kMove != SlabMove::kNone) {
      std::byte* to[kSlabAhead];
      kMove == SlabMove::kScatter ? InArena(row, to) : InSlab(row, to);
      PENSTOCK_UNROLL
      for (uint32_t i = 0; i < kSlabAhead; ++i) {
        if (row + i >= padding) Store(to[i], words[i]);
      }
    }
  }

 private:
  PENSTOCK_DEVICE void InSlab(uint32_t row, std::byte* (&at)[kSlabAhead]) const {
    PENSTOCK_UNROLL
    for (uint32_t i = 0; i < kSlabAhead; ++i) at[i] = slab.slab + (flat + (row + i) * kCrcRowBytes);
  }
  // The next rows of the arena.
  PENSTOCK_DEVICE void InArena(uint32_t row, std::byte* (&at)[kSlabAhead]) {
    if (row >= padding && within + (kSlabAhead - 1) * kCrcRowBytes < slab.piece_bytes) {
      PENSTOCK_UNROLL
      for (uint32_t i = 0; i < kSlabAhead; ++i) at[i] = piece + i * kCrcRowBytes;
      return Advance(kSlabAhead * kCrcRowBytes);
    }
    PENSTOCK_UNROLL
    for (uint32_t i = 0; i < kSlabAhead; ++i) {
      at[i] = piece;
      if (row + i >= padding) Advance(kCrcRowBytes);
    }
  }
  PENSTOCK_DEVICE void Advance(uint32_t bytes) {
    piece += bytes;
    within += bytes;
    if (within < slab.piece_bytes) return;
    block += within / slab.piece_bytes;
    within %= slab.piece_bytes;
    FindPiece();
  }
  PENSTOCK_DEVICE void FindPiece() {
    if (block >= slab.blocks) return;
    piece = slab.arena + static_cast<int64_t>(slab.block_ids[block]) * slab.block_stride +
            slab.offset + within;
  }
};

// Moves `count` rows of a chunk, a multiple of kSlabAhead. Returns the sum that they add to the
// chunk's, if there are sums.
template <SlabMove kMove>
PENSTOCK_DEVICE uint32_t MoveRows(const SlabKernelParams& p, const CrcLane& crc, uint32_t chunk,
                                  uint32_t first, uint32_t count) {
  SlabRows<kMove> rows(p, chunk, first);
  Words4 next[kSlabAhead], words[kSlabAhead];
  rows.Load(0, next);
  uint32_t state = 0;
  for (uint32_t row = 0; row < count; row += kSlabAhead) {
    PENSTOCK_UNROLL
    for (uint32_t i = 0; i < kSlabAhead; ++i) words[i] = next[i];
    if (row + kSlabAhead < count) rows.Load(row + kSlabAhead, next);
    rows.Save(row, words);
    if (p.slab.partials == nullptr) continue;
    PENSTOCK_UNROLL
    for (uint32_t i = 0; i < kSlabAhead; ++i) state = crc.Add(state, words[i]);
  }
  if (p.slab.partials == nullptr) return 0;
  return crc.Close(p.tables, state, (kCrcChunkRows - first - count) / kCrcPartRows);
}

// Moves this block's part of the chunks that remain.
template <SlabMove kMove>
PENSTOCK_DEVICE void MoveRest(const SlabKernelParams& p, const CrcLane& crc, uint32_t whole,
                              uint32_t* board) {
  const uint32_t warp = static_cast<uint32_t>(ThreadX()) / 32, part = warp % p.parts;
  const uint32_t chunk = whole + warp / p.parts * p.blocks + BlockX();
  const uint32_t rows = kCrcChunkRows / p.parts;
  if (chunk < p.chunks) {
    const uint32_t sum = MoveRows<kMove>(p, crc, chunk, part * rows, rows);
    if (crc.lane == 0) board[warp] = sum;
  }
  if (p.slab.partials == nullptr) return;
  SyncBlock();
  if (chunk >= p.chunks || part != 0 || crc.lane != 0) return;
  uint32_t sum = board[warp];
  for (uint32_t i = 1; i < p.parts; ++i) sum ^= board[warp + i];
  p.slab.partials[chunk] = sum;
}

constexpr int kSlabBoardBytes = kSlabWarps * 4;

// Any grid; its warps share the chunks. Shared memory: the board and, for sums, the tables.
template <SlabMove kMove>
__global__ void __launch_bounds__(kSlabWarps * 32)
    SlabKernel(const __grid_constant__ SlabKernelParams p) {
  auto* tables = reinterpret_cast<uint32_t*>(SharedMemory());
  uint32_t* board = tables;
  if (p.slab.partials != nullptr) {
    FillCrcTables(p.tables, kSlabWarps * 32, tables);
    board = tables + kCrcSharedBytes / 4;
    SyncBlock();
  }
  const CrcLane crc(tables);
  const uint32_t warps = p.blocks * kSlabWarps, whole = p.chunks / warps * warps;
  for (uint32_t chunk = BlockX() * kSlabWarps + ThreadX() / 32; chunk < whole; chunk += warps) {
    const uint32_t sum = MoveRows<kMove>(p, crc, chunk, 0, kCrcChunkRows);
    if (p.slab.partials != nullptr && crc.lane == 0) p.slab.partials[chunk] = sum;
  }
  MoveRest<kMove>(p, crc, whole, board);
}

// Copies one GPU's heads of pages to their places in a slab of whole pages, or back, 16 bytes a
// thread. The slab is beyond this GPU's memory: the copy takes as long as the link between them.

constexpr int kSlabPartThreads = 256;
constexpr uint32_t kSlabPartAhead = 4;  // units that a thread loads at once

struct SlabPartKernelParams {
  SlabPartParams part;
  uint32_t units = 0;  // of 16 bytes, in all layers of all blocks
  uint32_t grid = 0;   // blocks of the launch
};

// The two addresses of a unit.
struct SlabPartUnit {
  std::byte* in_arena;
  std::byte* in_slab;

  PENSTOCK_DEVICE SlabPartUnit(const SlabPartParams& p, uint32_t unit) {
    const uint32_t units_of_layer = p.layer_bytes / 16;
    const uint32_t row = unit / units_of_layer, at = unit % units_of_layer * 16;
    const uint32_t block = row / p.layers, layer = row % p.layers;
    in_arena = p.arena + static_cast<int64_t>(p.block_ids[block]) * p.block_stride + p.offset +
               static_cast<int64_t>(layer) * p.layer_stride + at;
    const uint32_t place = at < p.codes_bytes ? p.codes_at + at : p.scales_at + at - p.codes_bytes;
    in_slab = p.slab + static_cast<int64_t>(block) * p.slab_block_stride +
              static_cast<int64_t>(layer) * p.slab_layer_stride + place;
  }
};

// Any grid; its threads share the units.
template <bool kScatter>
__global__ void __launch_bounds__(kSlabPartThreads)
    SlabPartKernel(const __grid_constant__ SlabPartKernelParams p) {
  const uint32_t step = p.grid * kSlabPartThreads;
  const uint32_t begin = static_cast<uint32_t>(BlockX() * kSlabPartThreads + ThreadX());
  for (uint32_t first = begin; first < p.units; first += kSlabPartAhead * step) {
    Words4 words[kSlabPartAhead];
    std::byte* to[kSlabPartAhead];
    PENSTOCK_UNROLL
    for (uint32_t i = 0; i < kSlabPartAhead; ++i) {
      if (first + i * step >= p.units) continue;
      const SlabPartUnit unit(p.part, first + i * step);
      to[i] = kScatter ? unit.in_arena : unit.in_slab;
      words[i] = LoadStreaming(kScatter ? unit.in_slab : unit.in_arena);
    }
    PENSTOCK_UNROLL
    for (uint32_t i = 0; i < kSlabPartAhead; ++i) {
      if (first + i * step < p.units) Store(to[i], words[i]);
    }
  }
}

}  // namespace penstock::cuda
