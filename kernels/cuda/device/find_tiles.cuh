#pragma once

// Where the tiles of an untrusted payload lie. Every head says where the next one is, which would
// be a load from memory for each. So a block loads all places where the next heads of lx16 can be
// when tiles have few escapes, and then one thread goes from head to head in shared memory.

#include "kernels/cuda/device/lossless_tile.cuh"

namespace penstock::cuda {

constexpr uint32_t kFindHops = 16;  // heads that one look may find
constexpr uint32_t kFindDrift = 7;  // units of 16 bytes that a tile may have for its escapes
constexpr uint32_t kFindStride = 16 + kLx16Tile / 2 + kLx16Tile;  // of a tile without any
constexpr int kFindThreads = 896;
constexpr uint32_t kNoTile = 0xffffffff;

// Places of hop h are those from FirstPlace(h) on, one for every unit of escapes before.
constexpr uint32_t FirstPlace(uint32_t hop) { return hop + kFindDrift * hop * (hop - 1) / 2; }
static_assert(FirstPlace(0) == 0 && FirstPlace(kFindHops) <= kFindThreads);

struct FindBoard {
  Words4 heads[kFindThreads];
  uint32_t at, tile;  // that is next
};

// Bytes from the first head to that of this thread's place.
PENSTOCK_DEVICE uint32_t PlaceOfThread() {
  const auto thread = static_cast<uint32_t>(ThreadX());
  uint32_t hop = 0;
  while (FirstPlace(hop + 1) <= thread) ++hop;
  return hop * kFindStride + (thread - FirstPlace(hop)) * 16;
}
// Which thread has looked `bytes` from the first head on, `hop` tiles later; or none.
PENSTOCK_DEVICE uint32_t ThreadOfPlace(uint32_t hop, uint32_t bytes) {
  const uint32_t drift = (bytes - hop * kFindStride) / 16;  // large where it is negative
  return hop < kFindHops && drift <= kFindDrift * hop ? FirstPlace(hop) + drift : kFindThreads;
}

// One thread: goes on as far as `board` reaches. The fault found, or kNone.
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

// One block. Behind it all parts of every tile are inside of the payload, or there is a fault.
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
