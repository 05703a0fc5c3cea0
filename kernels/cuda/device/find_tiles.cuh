#pragma once

// Finds the tiles of an untrusted payload in parallel. Each head gives the address of the next one,
// so the heads of a payload form one chain. A block handles a segment of kSegmentTiles of the
// largest tiles. A tile begins in the first eighth of every segment; the block tries all addresses
// there, and keeps the first one from which valid heads lead to the segment's end. If every
// segment's chain begins where the previous one ends, together they are the payload's chain.
// Otherwise the payload is damaged, or bytes of a tile look like heads, and a single thread follows
// the heads from the first one to the fault.

#include "kernels/cuda/device/lossless_tile.cuh"

namespace penstock::cuda {

constexpr int kFindWarps = 4;
constexpr int kFindThreads = kFindWarps * 32;
constexpr uint32_t kNoTile = 0xffffffff;

PENSTOCK_DEVICE FoundHead HeadAt(const LosslessTilesParams& p, uint32_t at) {
  return {*reinterpret_cast<const Words4*>(p.lossless.payload + at)};
}

// Sets `tile` to the tile of `size` elements with this head, at offset `at` of the payload. Returns
// the fault of the head, or kNone.
PENSTOCK_DEVICE KvFault CheckHead(const LosslessTilesParams& p, const FoundHead& head, uint32_t at,
                                  uint32_t size, KvTile& tile) {
  if (!head.IsKnown(size)) return KvFault::kHead;
  tile = head.Tile(size);
  tile.offset = at;
  if (tile.bytes > p.lossless.payload_bytes - at) return KvFault::kTruncated;
  return HasItsCodes(tile, size, p.entropy) ? KvFault::kNone : KvFault::kCodes;
}

// The size of the tile with this head, or 0 if the head is not valid. The index of the tile is not
// known: a smaller tile is the one that ends the payload.
PENSTOCK_DEVICE uint32_t BytesOfTile(const LosslessTilesParams& p, const FoundHead& head,
                                     uint32_t at) {
  const uint32_t left = p.lossless.payload_bytes - at, rest = p.lossless.elements % p.tile_elements;
  KvTile tile;
  if (rest != 0 && CheckHead(p, head, at, rest, tile) == KvFault::kNone && tile.bytes == left) {
    return left;
  }
  if (CheckHead(p, head, at, p.tile_elements, tile) != KvFault::kNone) return 0;
  return rest == 0 || tile.bytes < left ? tile.bytes : 0;
}

// Follows the heads from segment.first up to `limit`. Returns false if a head is not valid.
PENSTOCK_DEVICE bool FollowSegment(const LosslessTilesParams& p, uint32_t limit,
                                   KvSegment& segment) {
  segment.tiles = 0;
  for (segment.end = segment.first; segment.end < limit; ++segment.tiles) {
    if (p.lossless.payload_bytes - segment.end < sizeof(LosslessHead)) return false;
    const uint32_t bytes = BytesOfTile(p, HeadAt(p, segment.end), segment.end);
    if (bytes == 0) return false;
    segment.end += bytes;
  }
  return true;
}

// The addresses of valid heads in the first eighth of a segment, in any order.
struct FirstHeads {
  uint32_t count;
  uint32_t at[kFindThreads];
  uint32_t board[kFindWarps];
};

// Collects the valid heads at `places` addresses from `start` on, 16 bytes apart; of more than
// kFindThreads, the list has some.
PENSTOCK_DEVICE void CollectHeads(const LosslessTilesParams& p, uint32_t start, uint32_t places,
                                  FirstHeads& heads) {
  constexpr uint32_t kAhead = 5;  // the places of lx16 at once
  static_assert(kAhead * kFindThreads > LosslessTileBytesMax(kLx16Tile) / 16);
  if (ThreadX() == 0) heads.count = 0;
  SyncBlock();
  for (uint32_t first = ThreadX(); first < places; first += kAhead * kFindThreads) {
    FoundHead head[kAhead];
    PENSTOCK_UNROLL
    for (uint32_t i = 0; i < kAhead; ++i) {
      const uint32_t place = first + i * kFindThreads;
      head[i] = HeadAt(p, start + (place < places ? place : first) * 16);
    }
    PENSTOCK_UNROLL
    for (uint32_t i = 0; i < kAhead; ++i) {
      const uint32_t place = first + i * kFindThreads, at = start + place * 16;
      if (place >= places || BytesOfTile(p, head[i], at) == 0) continue;
      const uint32_t index = AtomicAdd(&heads.count, 1u);
      if (index < kFindThreads) heads.at[index] = at;
    }
  }
  SyncBlock();
}

// Finds the chain of heads of every segment. Grid: segments.
__global__ void __launch_bounds__(kFindThreads)
    FindTilesKernel(const __grid_constant__ LosslessTilesParams p) {
  FirstHeads& heads = *reinterpret_cast<FirstHeads*>(SharedMemory());
  const auto index = static_cast<uint32_t>(BlockX());
  const uint32_t start = index * LosslessSegmentBytes(p.tile_elements);
  const bool last = index + 1 == p.segments;
  const uint32_t limit =
      last ? p.lossless.payload_bytes : start + LosslessSegmentBytes(p.tile_elements);
  if (p.lossless.payload_bytes < sizeof(LosslessHead)) {
    if (ThreadX() == 0) p.lossless.segments[index] = {kNoTile, kNoTile, 0};
    return;
  }
  CollectHeads(p, start, index == 0 ? 1 : LosslessTileBytesMax(p.tile_elements) / 16, heads);
  KvSegment segment = {kNoTile, kNoTile, 0};
  bool whole = false;
  if (static_cast<uint32_t>(ThreadX()) < heads.count) {
    segment.first = heads.at[ThreadX()];
    whole = FollowSegment(p, limit, segment);
  }
  const uint32_t rank = whole ? ~segment.first : 0u;
  const uint32_t most = BlockMost<kFindWarps>(rank, heads.board);
  if (most == 0 && ThreadX() == 0) p.lossless.segments[index] = {kNoTile, kNoTile, 0};
  if (most != 0 && rank == most) p.lossless.segments[index] = segment;
}

// Follows the heads of all tiles. Afterwards every part of every tile is inside the payload, or a
// fault is set. One thread.
PENSTOCK_DEVICE void FollowTiles(const LosslessTilesParams& p) {
  const LosslessParams& l = p.lossless;
  uint32_t at = 0;
  for (uint32_t index = 0; index < p.tiles; ++index) {
    KvTile tile;
    KvFault fault = KvFault::kTruncated;
    if (l.payload_bytes - at >= sizeof(LosslessHead)) {
      const uint32_t size = TileAt(l, index, p.tile_elements).size;
      fault = CheckHead(p, HeadAt(p, at), at, size, tile);
    }
    if (fault != KvFault::kNone) return Report(l.result, fault, index);
    l.tiles[index] = tile;
    at += tile.bytes;
  }
  if (at != l.payload_bytes) return Report(l.result, KvFault::kLeftOver, p.tiles);
  l.result->framed = 1;
}

// The segments that a block of PlaceFoundTilesKernel looks at: all of them, for the number of tiles
// before its own and to see whether their chains meet.
struct SegmentsSeen {
  uint32_t before = 0, total = 0, gaps = 0;

  PENSTOCK_DEVICE SegmentsSeen(const LosslessTilesParams& p, uint32_t own, uint32_t* board) {
    const KvSegment* segments = p.lossless.segments;
    for (uint32_t i = ThreadX(); i < p.segments; i += kFindThreads) {
      const uint32_t from = i == 0 ? 0 : segments[i - 1].end;
      if (segments[i].first != from) ++gaps;
      if (i < own) before += segments[i].tiles;
      total += segments[i].tiles;
    }
    before = BlockTotal<kFindWarps>(before, board);
    total = BlockTotal<kFindWarps>(total, board);
    gaps = BlockTotal<kFindWarps>(gaps, board);
  }
};

// Computes every tile from the segments. Grid: segments / kFindThreads.
__global__ void __launch_bounds__(kFindThreads)
    PlaceFoundTilesKernel(const __grid_constant__ LosslessTilesParams p) {
  auto* board = reinterpret_cast<uint32_t*>(SharedMemory());
  const LosslessParams& l = p.lossless;
  const uint32_t own = BlockX() * kFindThreads, mine = own + ThreadX();
  const SegmentsSeen seen(p, own, board);
  const bool met =
      seen.gaps == 0 && seen.total == p.tiles && l.segments[p.segments - 1].end == l.payload_bytes;
  if (!met) {
    if (mine == 0) FollowTiles(p);
    return;
  }
  const KvSegment segment = mine < p.segments ? l.segments[mine] : KvSegment{};
  uint32_t total = 0;
  uint32_t index = seen.before + BlockBefore<kFindWarps>(segment.tiles, board, total);
  uint32_t at = segment.first;
  for (uint32_t i = 0; i < segment.tiles; ++i, ++index) {
    KvTile tile;
    CheckHead(p, HeadAt(p, at), at, TileAt(l, index, p.tile_elements).size, tile);
    l.tiles[index] = tile;
    at += tile.bytes;
  }
  if (mine == 0) l.result->framed = 1;
}

}  // namespace penstock::cuda
