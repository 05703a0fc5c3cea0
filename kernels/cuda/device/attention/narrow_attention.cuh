#pragma once

// Attention of few rows, as decode steps have them: one block for each split, and a second kernel
// that merges the splits.

#include "kernels/cuda/device/attention/attention.cuh"

namespace penstock::cuda {

template <KvCode kKeys, KvCode kValues, int kDim, bool kPlain>
using NarrowShape = AttentionShape<kKeys, kValues, kDim, false, kPlain>;

// The sums of one split of one row and KV head: [share][kv_head]{head_dim values, max, sum}.
template <int kDim>
PENSTOCK_DEVICE float* ShareOf(const AttentionParams& p, int share, int kv_head) {
  return p.narrow_scratch + (static_cast<int64_t>(share) * p.kv.kv_heads + kv_head) * (kDim + 2);
}

// The rows of a narrow tile.
PENSTOCK_DEVICE int RowsOfNarrow(const AttentionParams& p, const AttentionTile& tile) {
  const int left = p.sequences[tile.sequence].rows * p.group - tile.first;
  return left < kNarrowRows ? left : kNarrowRows;
}

template <class Shape, template <class> class BlockOf = AttentionBlock>
struct NarrowBlock : BlockOf<Shape> {
  using Base = BlockOf<Shape>;

  PENSTOCK_DEVICE NarrowBlock(const AttentionParams& params, AttentionTile work)
      : Base(params, work) {}

  PENSTOCK_DEVICE void StoreShares(int split) {
    const int rows_here = RowsOfNarrow(this->p, this->tile);
    PENSTOCK_UNROLL
    for (int r = 0; r < 2; ++r) {
      const int row = this->group + r * 8;
      if (row >= rows_here) continue;
      float* share = ShareOf<Shape::kDim>(this->p, this->tile.first_share + split * rows_here + row,
                                          this->kv_head);
      PENSTOCK_UNROLL
      for (int i = 0; i < Base::kOutputTiles; ++i) {
        const int element = (this->first_output + i) * 8 + this->member * 2;
        share[element] = this->output[0][i][2 * r];
        share[element + 1] = this->output[0][i][2 * r + 1];
      }
      if (this->warp == 0 && this->member == 0) {
        share[Shape::kDim] = this->max[0][r];
        share[Shape::kDim + 1] = this->sum[0][r];
      }
    }
  }

  PENSTOCK_DEVICE void Run(int split) {
    this->TakeSplit(split);
    this->Tiles([&](int) { this->SumLanes(); });
    if (this->tile.splits == 1) {
      this->Store();
    } else {
      StoreShares(split);
    }
  }
};

// Grid: items x KV heads.
template <KvCode kKeys, KvCode kValues, int kDim, bool kPlain>
__global__ void __launch_bounds__(NarrowShape<kKeys, kValues, kDim, kPlain>::kThreads)
    NarrowAttentionKernel(const __grid_constant__ AttentionParams p) {
  const SplitItem item = p.items[BlockX()];
  if (item.tile < 0) return;  // padding
  NarrowBlock<NarrowShape<kKeys, kValues, kDim, kPlain>> block(p, p.narrow[item.tile]);
  block.Run(item.split);
}

// Merges the splits of narrow tiles. Grid: tiles x KV heads x rows; a thread for every two
// elements, or a warp for a row that is rotated back.
template <int kDim, bool kRotated>
constexpr int kMergeThreads = kRotated ? 32 : kDim / 2;
template <int kDim, bool kPlain, bool kRotated>
__global__ void __launch_bounds__(kMergeThreads<kDim, kRotated>)
    MergeSplitsKernel(const __grid_constant__ AttentionParams p) {
  constexpr int kAtOnce = 8;  // splits whose loads are under way together
  constexpr int kElements = kDim / kMergeThreads<kDim, kRotated>;
  const AttentionTile tile = p.narrow[BlockX()];
  if (tile.sequence < 0 || tile.splits == 1) return;  // padding, or stored already
  const int kv_head = BlockY(), r = BlockZ(), rows = RowsOfNarrow(p, tile);
  if (r >= rows) return;
  const int element = ThreadX() * kElements;
  float max = -INFINITY, sum = 0, value[kElements] = {};
  for (int first = 0; first < tile.splits; first += kAtOnce) {
    float share_max[kAtOnce], share_sum[kAtOnce], share_value[kAtOnce][kElements];
    PENSTOCK_UNROLL
    for (int i = 0; i < kAtOnce; ++i) {
      share_sum[i] = 0;
      if (first + i >= tile.splits) continue;
      const float* share = ShareOf<kDim>(p, tile.first_share + (first + i) * rows + r, kv_head);
      share_max[i] = share[kDim];
      share_sum[i] = share[kDim + 1];
      PENSTOCK_UNROLL
      for (int e = 0; e < kElements; ++e) share_value[i][e] = share[element + e];
    }
    PENSTOCK_UNROLL
    for (int i = 0; i < kAtOnce; ++i) {
      if (share_sum[i] == 0) continue;  // the row does not see this split
      const SplitMerge merge = MergeMaximum(max, share_max[i]);
      sum = Merged(merge, sum, share_sum[i]);
      PENSTOCK_UNROLL
      for (int e = 0; e < kElements; ++e) value[e] = Merged(merge, value[e], share_value[i][e]);
    }
  }
  const AttentionSequence sequence = p.sequences[tile.sequence];
  const int row = tile.first + r, head = kv_head * p.group + row % p.group;
  const float factor = OutputFactor<kPlain>(p, head, max, sum);
  Bf16* out = p.output + (sequence.first_row + row / p.group) * p.output_stride + head * kDim;
  if constexpr (kRotated) {
    PENSTOCK_UNROLL
    for (int e = 0; e < kElements; ++e) value[e] = Multiply(value[e], factor);
    StoreRotatedBack(value, ThreadX(), out);
  } else {
    *reinterpret_cast<uint32_t*>(out + element) = PackBf16(value[0] * factor, value[1] * factor);
  }
}

}  // namespace penstock::cuda
