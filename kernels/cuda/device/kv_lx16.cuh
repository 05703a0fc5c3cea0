#pragma once

// The lx16 codec: 4-bit codes for exponents. One block codes one tile; in each group of 64 values
// four lanes hold the low nibbles and four the high nibbles.

#include "kernels/cuda/device/lossless_tile.cuh"

namespace penstock::cuda {

constexpr int kTileSharedBytes = (256 + kTileWarps) * 4;  // used by TileSplit
constexpr int kBoardBytes = kTileWarps * 4;

// Computes the split of every tile, and its size. Grid: tiles.
__global__ void __launch_bounds__(kTileThreads)
    SizeLx16Kernel(const __grid_constant__ LosslessTilesParams p) {
  auto* shared = reinterpret_cast<uint32_t*>(SharedMemory());
  const TileView tile = TileAt(p.lossless, static_cast<uint32_t>(BlockX()), kLx16Tile);
  const TileSplit split(tile, shared);
  if (ThreadX() != 0) return;
  p.lossless.tiles[BlockX()] =
      split.stored ? StoredTile(tile.size) : CodedTile(split, tile.size, tile.size / 2);
}

// The codes of four values, one per byte.
PENSTOCK_DEVICE uint32_t FourCodes(const Octet& octet, int first, uint32_t base) {
  uint32_t codes = 0;
  PENSTOCK_UNROLL
  for (int i = 0; i < 4; ++i) codes |= CodeOf(octet.bits(first + i), base) << (8 * i);
  return codes;
}
PENSTOCK_DEVICE uint32_t FourSigns(const Octet& octet, int first) {
  uint32_t signs = 0;
  PENSTOCK_UNROLL
  for (int i = 0; i < 4; ++i) signs |= SignOf(octet.bits(first + i)) << (8 * i);
  return signs;
}
// The address of this lane's four bytes of nibbles, which combine the first, or second, four of its
// eight values with those 32 elements later.
PENSTOCK_DEVICE uint32_t NibblesAt(uint32_t element) {
  const uint32_t lane = ThreadX() % 32;
  return element / 64 * 32 + (lane & 3u) * 8 + (lane & 4u);
}

// Writes every tile to the payload. Grid: tiles.
__global__ void __launch_bounds__(kTileThreads)
    WriteLx16Kernel(const __grid_constant__ LosslessTilesParams p) {
  if (!IsSmaller(p.lossless)) return;
  const TileView tile = TileAt(p.lossless, static_cast<uint32_t>(BlockX()), kLx16Tile);
  const KvTile plan = p.lossless.tiles[BlockX()];
  std::byte* head = p.lossless.payload + plan.offset;
  std::byte *codes = head + 16, *signs = codes + plan.coded;
  WriteHead(plan, head);
  if (plan.mode == LosslessMode::kStored) {
    return CopyTile(reinterpret_cast<const std::byte*>(tile.values), codes, tile.size);
  }
  const bool upper = (ThreadX() & 4) != 0;
  for (uint32_t row = ThreadX() / 32; row < tile.rows(); row += kTileWarps) {
    const Octet octet = tile.Load(row);
    const uint32_t first = FourCodes(octet, 0, plan.base), second = FourCodes(octet, 4, plan.base);
    const uint32_t other = ShuffleXor(upper ? first : second, 4);
    const uint32_t at = TileView::At(row);
    if (at >= tile.size) continue;
    *reinterpret_cast<uint32_t*>(codes + NibblesAt(at)) =
        upper ? other | second << 4 : first | other << 4;
    *reinterpret_cast<Words2*>(signs + at) = {{FourSigns(octet, 0), FourSigns(octet, 4)}};
  }
  WriteEscapes(tile, plan, signs + tile.size, head + plan.bytes,
               reinterpret_cast<uint32_t*>(SharedMemory()));
}

// Joins two values from a byte of sign and mantissa and a code each.
PENSTOCK_DEVICE uint32_t JoinPair(uint32_t signs, uint32_t codes, uint32_t base) {
  uint32_t pair = 0;
  PENSTOCK_UNROLL
  for (int i = 0; i < 2; ++i) {
    const uint32_t sign = signs >> (8 * i) & 0xffu, code = codes >> (8 * i) & 0xffu;
    const uint32_t exponent = code == 0 ? 0 : base + code;
    pair |= ((sign & 0x80u) << 8 | exponent << 7 | (sign & 0x7fu)) << (16 * i);
  }
  return pair;
}

// Decodes every tile. Grid: tiles.
__global__ void __launch_bounds__(kTileThreads)
    DecodeLx16Kernel(const __grid_constant__ LosslessTilesParams p) {
  if (!IsFramed(p.lossless)) return;
  const TileView tile = TileAt(p.lossless, static_cast<uint32_t>(BlockX()), kLx16Tile);
  const KvTile plan = p.lossless.tiles[BlockX()];
  const std::byte* codes = p.lossless.payload + plan.offset + 16;
  auto* values = p.lossless.values + uint64_t{static_cast<uint32_t>(BlockX())} * kLx16Tile;
  if (plan.mode == LosslessMode::kStored) {
    return CopyTile(codes, reinterpret_cast<std::byte*>(values), tile.size);
  }
  const std::byte* signs = codes + plan.coded;
  const bool upper = (ThreadX() & 4) != 0;
  for (uint32_t row = ThreadX() / 32; row < tile.rows(); row += kTileWarps) {
    const uint32_t at = TileView::At(row);
    const bool inside = at < tile.size;
    const uint32_t nibbles = inside ? *reinterpret_cast<const uint32_t*>(codes + NibblesAt(at)) : 0;
    const uint32_t low = nibbles & 0x0f0f0f0fu, high = nibbles >> 4 & 0x0f0f0f0fu;
    const uint32_t other = ShuffleXor(upper ? low : high, 4);
    if (!inside) continue;
    const uint32_t first = upper ? other : low, second = upper ? high : other;
    const Words2 sign = *reinterpret_cast<const Words2*>(signs + at);
    *reinterpret_cast<Words4*>(values +
                               at) = {{JoinPair(sign.word[0], first, plan.base),
                                       JoinPair(sign.word[0] >> 16, first >> 16, plan.base),
                                       JoinPair(sign.word[1], second, plan.base),
                                       JoinPair(sign.word[1] >> 16, second >> 16, plan.base)}};
  }
  PatchEscapes<kTileWarps>(plan, signs + tile.size, tile.size, reinterpret_cast<uint16_t*>(values),
                           p.lossless.result, reinterpret_cast<uint32_t*>(SharedMemory()));
}

}  // namespace penstock::cuda
