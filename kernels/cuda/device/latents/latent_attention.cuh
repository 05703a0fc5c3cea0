#pragma once

// Attention over latents: the arithmetic of attention.cuh with one shape of tiles, of 16 rows. All
// heads read the same row of a token as key, and its latent as value, so that a tile of tokens is
// loaded once for both. A block computes one split of its rows, or walks all of them; the sums of
// both are in registers, and their bits are equal.
//
// This room, kernels/cuda/device/latents, has the kernels of latent attention. It may use
// kernels/cuda/latents, kernels/cuda/device and kernels/cuda/device/attention.

#include "kernels/cuda/device/attention/narrow_attention.cuh"
#include "kernels/cuda/latents/latents.h"

namespace penstock::cuda {

struct LatentShape {
  static constexpr KvCode kKeys = KvCode::kBf16, kValues = KvCode::kBf16;
  static constexpr bool kWide = false, kPlain = true;
  static constexpr int kDim = kLatentRank;  // of values
  static constexpr int kWarps = 4, kThreads = kWarps * 32;
  static constexpr int kRowTiles = 1, kRows = kNarrowRows;
  static constexpr int kTokens = 32;  // per tile; part of the arithmetic
  static constexpr int kStages = 2;
  static constexpr int kTilesOfSplit = kSplitTokens / kTokens;
  static constexpr int kRow = kLatentRow * 2;
  static constexpr int kQueryBytes = kRows * kRow;
  static constexpr int kStageBytes = kTokens * kRow;
  static constexpr int kScoreBytes = kRows * kTokens * 4;
  static constexpr int kSharedBytes = kQueryBytes + kStages * kStageBytes + kScoreBytes;
};

struct LatentBlock : NarrowBlock<LatentShape> {
  static constexpr int kLatentChunks = kLatentRank / 8;  // of a row's kChunks

  const LatentAttentionParams& latents;

  PENSTOCK_DEVICE LatentBlock(const LatentAttentionParams& params, AttentionTile work)
      : NarrowBlock(params.attention, work), latents(params) {}

  // A query is in two places: what meets latents, and what meets rotated keys.
  PENSTOCK_DEVICE void FetchQueries() {
    for (int c = ThreadX(); c < kRows * kChunks; c += kThreads) {
      const int r = c / kChunks, chunk = c % kChunks, row = tile.first + r;
      const bool valid = row < rows;
      const int token = valid ? row / p.group : 0, head = valid ? row % p.group : 0;
      const int64_t at = sequence.first_row + token;
      const Bf16* from = p.queries + at * p.query_stride + head * kLatentRank + chunk * 8;
      if (chunk >= kLatentChunks) {
        from = latents.rotated + at * latents.rotated_stride + head * latents.rotated_step +
               (chunk - kLatentChunks) * 8;
      }
      CopyAsync16(SharedMemory() + Swizzled<kRow>(r, chunk), from, valid);
    }
  }

  // Starts one group of asynchronous copies.
  PENSTOCK_DEVICE void Fetch(int n, int stage) {
    const KvSource from = Source();
    const TilePages<kTokens> here = pages;
    pages.Load(from, (n + 1) * kTokens);
    if (n < tile_end) FetchRows(from, here, n * kTokens, KeyStage(stage));
    CommitCopies();
  }
  static PENSTOCK_DEVICE void FetchRows(const KvSource& from, const TilePages<kTokens>& pages,
                                        int first_token, uint8_t* to) {
    constexpr int kRounds = kTokens * kChunks / kThreads;
    static_assert(kRounds * kThreads == kTokens * kChunks);
    const int slot = SlotOf(from.kv, first_token), page_mask = (1 << from.kv.page_log2) - 1;
    PENSTOCK_UNROLL
    for (int i = 0; i < kRounds; ++i) {
      const int c = i * kThreads + ThreadX(), row = c / kChunks, chunk = c % kChunks;
      const std::byte* source = pages.PageOf(from.kv, row / 16) + from.kv.keys.offset +
                                ((slot + row) & page_mask) * kRow + chunk * 16;
      CopyAsync16(to + Swizzled<kRow>(row, chunk), source, first_token + row < from.length);
    }
  }

  // The scores of this warp's eight tokens, as two sums of half the steps, so that one need not
  // wait for the other.
  PENSTOCK_DEVICE void MultiplyKeys(const uint8_t* keys) {
    static_assert(kOwnScores == 1 && kSteps % 2 == 0);
    float sums[2][4] = {};
    const int row = first_score * 8 + (lane & 7);
    PENSTOCK_UNROLL
    for (int k = 0; k < kSteps; k += 2) {
      uint32_t b[4], query[2][4];
      LoadMatrix4(b, keys + Swizzled<kRow>(row, 2 * k + (lane >> 3)));
      LoadQuery(query[0], 0, k);
      LoadQuery(query[1], 0, k + 1);
      Mma<true>(sums[0], query[0], b[0], b[1]);
      Mma<true>(sums[1], query[1], b[2], b[3]);
    }
    PENSTOCK_UNROLL
    for (int i = 0; i < 4; ++i) scores[0][0][i] = Add(sums[0][i], sums[1][i]);
    ExchangeScores();
  }

  // Walks the tiles, and calls end_split() at the end of each split.
  template <class EndSplit>
  PENSTOCK_DEVICE void Tiles(const EndSplit& end_split) {
    FetchQueries();
    pages.Load(Source(), tile_begin * kTokens);
    Fetch(tile_begin, 0);
    int stage = 0;
    for (int n = tile_begin; n < tile_end; ++n) {
      WaitCopies<0>();
      SyncBlock();  // and all threads are done with the stage that the next copies overwrite
      Fetch(n + 1, stage ^ 1);
      MultiplyKeys(KeyStage(stage));
      Weigh(n);
      MultiplyValues(KeyStage(stage));
      stage ^= 1;
      if ((n + 1) % kTilesOfSplit == 0 || n + 1 == tile_end) end_split();
    }
    WaitCopies<0>();
  }

  PENSTOCK_DEVICE void ComputeSplit(int split) {
    TakeSplit(split);
    Tiles([&] { SumLanes(); });
    if (tile.splits == 1) {
      Store();
    } else {
      StoreShares(split);
    }
  }

  PENSTOCK_DEVICE void ComputeAll() {
    LatentSums sums;
    Tiles([&] {
      SumLanes();
      sums.Merge(*this);
      Reset();
    });
    sums.Give(*this);
    Store();
  }

 private:
  static constexpr int kRow = LatentShape::kRow;
  static constexpr int kRows = LatentShape::kRows, kThreads = LatentShape::kThreads;
  static constexpr int kTilesOfSplit = LatentShape::kTilesOfSplit;

  // The merged sums of splits. A split that a row does not see changes nothing.
  struct LatentSums {
    float output[kOutputTiles][4] = {}, max[2] = {-INFINITY, -INFINITY}, sum[2] = {};

    PENSTOCK_DEVICE void Merge(const LatentBlock& split) {
      PENSTOCK_UNROLL
      for (int r = 0; r < 2; ++r) {
        if (split.sum[0][r] == 0) continue;
        const SplitMerge merge = MergeMaximum(max[r], split.max[0][r]);
        sum[r] = Merged(merge, sum[r], split.sum[0][r]);
        PENSTOCK_UNROLL
        for (int i = 0; i < kOutputTiles; ++i) {
          PENSTOCK_UNROLL
          for (int x = 2 * r; x < 2 * r + 2; ++x) {
            output[i][x] = Merged(merge, output[i][x], split.output[0][i][x]);
          }
        }
      }
    }
    PENSTOCK_DEVICE void Give(LatentBlock& block) const {
      PENSTOCK_UNROLL
      for (int r = 0; r < 2; ++r) {
        block.max[0][r] = max[r];
        block.sum[0][r] = sum[r];
      }
      PENSTOCK_UNROLL
      for (int i = 0; i < kOutputTiles; ++i) {
        PENSTOCK_UNROLL
        for (int x = 0; x < 4; ++x) block.output[0][i][x] = output[i][x];
      }
    }
  };
};

// Grid: tiles.
__global__ void __launch_bounds__(LatentShape::kThreads)
    LatentTilesKernel(const __grid_constant__ LatentAttentionParams p) {
  const AttentionTile tile = p.attention.wide[BlockX()];
  if (tile.sequence < 0) return;  // padding
  LatentBlock block(p, tile);
  block.ComputeAll();
}

// Grid: items.
__global__ void __launch_bounds__(LatentShape::kThreads)
    LatentSplitsKernel(const __grid_constant__ LatentAttentionParams p) {
  const SplitItem item = p.attention.items[BlockX()];
  if (item.tile < 0) return;  // padding
  LatentBlock block(p, p.attention.narrow[item.tile]);
  block.ComputeSplit(item.split);
}

}  // namespace penstock::cuda
