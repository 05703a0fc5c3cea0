#pragma once

// Finds the tiles of an untrusted payload. Each head gives the address of the next one, so
// following them costs one memory latency per tile. Instead, a block loads all addresses where the
// next kFindHops heads can be if the tiles have few escapes (one per thread), and then one thread
// follows the heads in shared memory.

#include "kernels/cuda/device/lossless_tile.cuh"

namespace penstock::cuda {

constexpr uint32_t kFindHops = 16;  // most heads that one pass over the board finds
// Most escapes of a tile that a pass expects, in units of 16 bytes.
constexpr uint32_t kFindDrift = 7;
constexpr uint32_t kFindStride = 16 + kLx16Tile / 2 + kLx16Tile;  // size of a tile without escapes
constexpr int kFindThreads = 896;
constexpr uint32_t kNoTile = 0xffffffff;

// The threads of hop h start at FirstPlace(h), one for each possible number of escape units in the
// tiles before it.
constexpr uint32_t FirstPlace(uint32_t hop) { return hop + kFindDrift * hop * (hop - 1) / 2; }
static_assert(FirstPlace(0) == 0 && FirstPlace(kFindHops) <= kFindThreads);

struct FindBoard {
  Words4 heads[kFindThreads];
  uint32_t at, tile;  // offset and index of the next tile
};

// The offset that this thread loads, in bytes from the first head.
PENSTOCK_DEVICE uint32_t PlaceOfThread() {
  const auto thread = static_cast<uint32_t>(ThreadX());
  uint32_t hop = 0;
  while (FirstPlace(hop + 1) <= thread) ++hop;
  return hop * kFindStride + (thread - FirstPlace(hop)) * 16;
}
// Returns the thread that loaded the head at offset `bytes`, which is `hop` tiles after the first,
// or kFindThreads if none did.
PENSTOCK_DEVICE uint32_t ThreadOfPlace(uint32_t hop, uint32_t bytes) {
  const uint32_t drift = (bytes - hop * kFindStride) / 16;  // wraps to a large value if negative
  return hop < kFindHops && drift <= kFindDrift * hop ? FirstPlace(hop) + drift : kFindThreads;
}

// Follows the heads as far as `board` holds them. Returns the fault found, or kNone. One thread.
PENSTOCK_DEVICE KvFault FollowHeads(const LosslessTilesParams& p, FindBoard& board) {
  const LosslessParams& l = p.lossless;
  const uint32_t start = board.at;
  for (uint32_t hop = 0; board.tile < p.tiles; ++hop, ++board.tile) {
    const uint32_t looked = ThreadOfPlace(hop, board.at - start);
    if (looked == kFindThreads) break;
    const uint32_t size = TileAt(l, board.tile, p.tile_elements).size;
    const uint32_t left = l.payload_bytes - board.at;
    if (left < 16) return KvFault::kTruncated;
    const FoundHead head = {board.heads[looked]};
    if (!head.IsKnown(size)) return KvFault::kHead;
    KvTile tile = head.Tile(size);
    if (tile.bytes > left) return KvFault::kTruncated;
    if (!HasItsCodes(tile, size, p.entropy)) return KvFault::kCodes;
    tile.offset = board.at;
    l.tiles[board.tile] = tile;
    board.at += tile.bytes;
  }
  return KvFault::kNone;
}

// Finds all tiles. Afterwards every part of every tile is inside the payload, or a fault is set.
// One block.
__global__ void __launch_bounds__(kFindThreads)
    FindTilesKernel(const __grid_constant__ LosslessTilesParams p) {
  FindBoard& board = *reinterpret_cast<FindBoard*>(SharedMemory());
  const LosslessParams& l = p.lossless;
  const uint32_t place = PlaceOfThread();
  if (ThreadX() == 0) board.at = board.tile = 0;
  SyncBlock();
  while (board.tile < p.tiles) {
    const uint64_t from = uint64_t{board.at} + place;
    if (from + 16 <= l.payload_bytes) {
      board.heads[ThreadX()] = *reinterpret_cast<const Words4*>(l.payload + from);
    }
    SyncBlock();
    if (ThreadX() == 0) {
      const KvFault fault = FollowHeads(p, board);
      if (fault != KvFault::kNone) {
        Report(l.result, fault, board.tile);
        board.tile = kNoTile;
      }
    }
    SyncBlock();
  }
  if (ThreadX() != 0 || board.tile == kNoTile) return;
  if (board.at != l.payload_bytes) return Report(l.result, KvFault::kLeftOver, p.tiles);
  l.result->framed = 1;
}

}  // namespace penstock::cuda
