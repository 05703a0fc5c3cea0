#pragma once

// Keys of one head in shared memory, a tile at a time, as attention reads them.
//
// This room, kernels/cuda/device/eviction, has the kernels that score keys and move the slots that
// stay. It may use kernels/cuda with its eviction room, and kernels/cuda/device with its attention
// room.

#include "kernels/cuda/device/attention/kv_tile.cuh"
#include "kernels/cuda/eviction/eviction.h"

namespace penstock::cuda {

// A block of four warps. Quantised keys are converted to bf16.
template <KvCode kCode, int kHeadDim>
struct KeyTiles {
  static constexpr int kDim = kHeadDim, kThreads = 128, kWarps = kThreads / 32;
  static constexpr int kTokens = kDim <= 64 ? 64 : 32;  // per tile
  static constexpr int kTilesOfSplit = kScoreSplitTokens / kTokens;
  static constexpr int kRow = 2 * kDim;  // bytes
  using Plane = PlaneTile<kCode, kDim, kTokens, kThreads>;
  static constexpr int kBytes = Plane::kStageBytes + Plane::kConvertedBytes;

  // Returns the rows of a tile, swizzled, in shared memory; zeros behind the last token. All
  // threads of the block call it, and are done with the tile before.
  static PENSTOCK_DEVICE const uint8_t* Load(const KeyScoreParams& p, int kv_head, int tile) {
    return Load(KvSource{p.kv, p.table, kv_head, p.tokens}, tile);
  }
  static PENSTOCK_DEVICE const uint8_t* Load(const KvSource& from, int tile) {
    TilePages<kTokens> pages;
    pages.Load(from, tile * kTokens);
    SyncBlock();  // all threads are done with the tile before
    uint8_t* stage = SharedMemory();
    Plane::Fetch(from, from.kv.keys, pages, tile * kTokens, stage);
    CommitCopies();
    WaitCopies<0>();
    SyncBlock();  // the copies of all threads are complete
    if constexpr (!Plane::kCodes) return stage;
    uint8_t* converted = stage + Plane::kStageBytes;
    Plane::Convert(stage, from.length - tile * kTokens, converted);
    SyncBlock();  // the whole tile is converted
    return converted;
  }

  static PENSTOCK_DEVICE float At(const uint8_t* keys, int row, int element) {
    const auto* chunk = reinterpret_cast<const uint16_t*>(keys + Swizzled<kRow>(row, element / 8));
    return WidenBf16(chunk[element % 8]);
  }
  // Calls use(element, value) for all elements of a row, in order.
  template <class Use>
  static PENSTOCK_DEVICE void ForElements(const uint8_t* keys, int row, const Use& use) {
    PENSTOCK_UNROLL
    for (int chunk = 0; chunk < kRow / 16; ++chunk) {
      const auto words = *reinterpret_cast<const Words4*>(keys + Swizzled<kRow>(row, chunk));
      PENSTOCK_UNROLL
      for (int i = 0; i < 4; ++i) {
        use(chunk * 8 + 2 * i, LowBf16(words.word[i]));
        use(chunk * 8 + 2 * i + 1, HighBf16(words.word[i]));
      }
    }
  }

  static PENSTOCK_DEVICE float Norm(const uint8_t* keys, int row) {
    float sum = 0;
    ForElements(keys, row, [&](int, float x) { sum = Add(sum, Multiply(x, x)); });
    return SquareRoot(sum);
  }
};

}  // namespace penstock::cuda
