#pragma once

// The lx16 codec: 4-bit codes for exponents. One block codes one tile; in each group of 64 values
// four lanes hold the low nibbles and four the high nibbles.

#include "kernels/cuda/device/lossless_tile.cuh"

namespace penstock::cuda {

constexpr int kTileSharedBytes = (256 + kTileWarps) * 4;  // used by TileSplit
constexpr int kBoardBytes = kTileWarps * 4;

// The values of a tile in registers.
struct Lx16Rows : WarpRows<kLx16Tile, kTileWarps> {
  Octet octets[kCount];

  PENSTOCK_DEVICE explicit Lx16Rows(const TileView& tile) {
    PENSTOCK_UNROLL
    for (int i = 0; i < kCount; ++i) octets[i] = tile.Load(RowOf(i));
  }
  PENSTOCK_DEVICE const Octet& octet(int i) const { return octets[i]; }
};
constexpr int kLx16Rows = Lx16Rows::kCount;

// Computes the split of every tile, and its size. Grid: tiles.
__global__ void __launch_bounds__(kTileThreads)
    SizeLx16Kernel(const __grid_constant__ LosslessTilesParams p) {
  auto* shared = reinterpret_cast<uint32_t*>(SharedMemory());
  const TileView tile = TileAt(p.lossless, static_cast<uint32_t>(BlockX()), kLx16Tile);
  const Lx16Rows rows(tile);
  const TileSplit<Lx16Rows> split(rows, tile.size, shared);
  if (ThreadX() == 0) p.lossless.tiles[BlockX()] = TileOf(split, tile.size, tile.size / 2);
}

// The address of this lane's four bytes of nibbles, which combine the first, or second, four of its
// eight values with those 32 elements later.
PENSTOCK_DEVICE uint32_t NibblesAt(uint32_t element) {
  const uint32_t lane = ThreadX() % 32;
  return element / 64 * 32 + (lane & 3u) * 8 + (lane & 4u);
}

// Writes every tile to the payload, the last ones first: the caches may still have their values.
// Grid: tiles.
__global__ void __launch_bounds__(kTileThreads)
    WriteLx16Kernel(const __grid_constant__ LosslessTilesParams p) {
  const uint32_t index = p.tiles - 1 - static_cast<uint32_t>(BlockX());
  const KvTile plan = LoadTile(p.lossless, index);
  const TileView tile = TileAt(p.lossless, index, kLx16Tile);
  const Lx16Rows rows(tile);
  if (!IsSmaller(p.lossless)) return;
  std::byte* head = p.lossless.payload + plan.offset;
  std::byte *codes = head + 16, *signs = codes + plan.coded;
  WriteHead(plan, head);
  if (plan.mode == LosslessMode::kStored) {
    return CopyTile<kTileThreads>(reinterpret_cast<const std::byte*>(tile.values), codes,
                                  tile.size);
  }
  const bool upper = (ThreadX() & 4) != 0;
  const uint32_t bases = FourBytes(plan.base);
  RowEscapes<Lx16Rows> escapes;
  PENSTOCK_UNROLL
  for (int i = 0; i < kLx16Rows; ++i) {
    const Octet& octet = rows.octets[i];
    escapes.Count(i, octet, bases);
    const Quad low = octet.quad(0), high = octet.quad(1);
    const uint32_t first = low.Codes(bases), second = high.Codes(bases);
    const uint32_t other = ShuffleXor(upper ? first : second, 4);
    const uint32_t at = TileView::At(Lx16Rows::RowOf(i));
    if (at >= tile.size) continue;
    *reinterpret_cast<uint32_t*>(codes + NibblesAt(at)) =
        upper ? other | second << 4 : first | other << 4;
    Store(signs + at, Words2{{low.signs, high.signs}});
  }
  escapes.Write(tile, plan, signs + tile.size, head + plan.bytes,
                reinterpret_cast<uint32_t*>(SharedMemory()));
}

// Decodes every tile. Grid: tiles.
__global__ void __launch_bounds__(kTileThreads)
    DecodeLx16Kernel(const __grid_constant__ LosslessTilesParams p) {
  const KvTile plan = LoadTile(p.lossless, static_cast<uint32_t>(BlockX()));
  if (!IsFramed(p.lossless)) return;
  const TileView tile = TileAt(p.lossless, static_cast<uint32_t>(BlockX()), kLx16Tile);
  const std::byte* codes = p.lossless.payload + plan.offset + 16;
  auto* values = p.lossless.values + uint64_t{static_cast<uint32_t>(BlockX())} * kLx16Tile;
  if (plan.mode == LosslessMode::kStored) {
    return CopyTile<kTileThreads>(codes, reinterpret_cast<std::byte*>(values), tile.size);
  }
  const std::byte* signs = codes + plan.coded;
  const bool upper = (ThreadX() & 4) != 0;
  const uint32_t bases = FourBytes(plan.base);
  uint32_t nibbles[kLx16Rows] = {};
  Words2 sign[kLx16Rows] = {};
  PENSTOCK_UNROLL
  for (int i = 0; i < kLx16Rows; ++i) {
    const uint32_t at = TileView::At(Lx16Rows::RowOf(i));
    if (at >= tile.size) continue;
    nibbles[i] = *reinterpret_cast<const uint32_t*>(codes + NibblesAt(at));
    sign[i] = *reinterpret_cast<const Words2*>(signs + at);
  }
  const TileEscapes escapes{.signs = signs, .size = tile.size, .count = plan.escapes};
  const TileEscapes::Item escape = escapes.Load(static_cast<uint32_t>(ThreadX()) % 32);
  PENSTOCK_UNROLL
  for (int i = 0; i < kLx16Rows; ++i) {
    const uint32_t low = nibbles[i] & 0x0f0f0f0fu, high = nibbles[i] >> 4 & 0x0f0f0f0fu;
    const uint32_t other = ShuffleXor(upper ? low : high, 4);
    const uint32_t at = TileView::At(Lx16Rows::RowOf(i));
    if (at >= tile.size) continue;
    const Words2 first = Quad::Join(sign[i].word[0], upper ? other : low, bases).Values();
    const Words2 second = Quad::Join(sign[i].word[1], upper ? high : other, bases).Values();
    Store(values + at, Words4{{first.word[0], first.word[1], second.word[0], second.word[1]}});
  }
  const uint32_t begin = Lx16Rows::RowOf(0) * kTileRow, end = Lx16Rows::RowOf(kLx16Rows) * kTileRow;
  if (escapes.Patch(escape, begin, end, reinterpret_cast<uint16_t*>(values))) return;
  if (ThreadX() == 0) {
    Report(p.lossless.result, KvFault::kEscape, static_cast<uint32_t>(BlockX()));
  }
}

}  // namespace penstock::cuda
