#pragma once

// Attention of many rows: a block walks all splits of its rows, and merges each into sums that it
// keeps in memory between splits, because registers hold only those of one split.

#include "kernels/cuda/device/attention/attention.cuh"

namespace penstock::cuda {

template <KvCode kKeys, KvCode kValues, int kDim, bool kPlain>
using WideShape = AttentionShape<kKeys, kValues, kDim, true, kPlain>;

template <class Shape, template <class> class BlockOf = AttentionBlock>
struct WideBlock : BlockOf<Shape> {
  using Base = BlockOf<Shape>;
  using Base::kOutputTiles;
  using Base::kRowTiles;
  using Base::max;
  using Base::output;
  using Base::sum;

  PENSTOCK_DEVICE WideBlock(const AttentionParams& params, AttentionTile work)
      : Base(params, work) {}

  // This thread's words of the block's scratch, which no other thread reads.
  PENSTOCK_DEVICE FloatWords4* Scratch() const {
    const int64_t block = static_cast<int64_t>(BlockX()) * this->p.kv.kv_heads + BlockY();
    return reinterpret_cast<FloatWords4*>(this->p.wide_scratch) +
           block * Shape::kScratchWords * Shape::kThreads + ThreadX();
  }
  static PENSTOCK_DEVICE int At(int m, int i) {
    return (m * (kOutputTiles + 1) + i) * Shape::kThreads;
  }

  PENSTOCK_DEVICE void Save() const {
    FloatWords4* scratch = Scratch();
    PENSTOCK_UNROLL
    for (int m = 0; m < kRowTiles; ++m) {
      PENSTOCK_UNROLL
      for (int i = 0; i < kOutputTiles; ++i) {
        scratch[At(m, i)] = {{output[m][i][0], output[m][i][1], output[m][i][2], output[m][i][3]}};
      }
      scratch[At(m, kOutputTiles)] = {{max[m][0], max[m][1], sum[m][0], sum[m][1]}};
    }
  }

  // Merges the split in the registers into the sums of the splits before it. A split that the rows
  // do not see changes nothing.
  PENSTOCK_DEVICE void MergeSaved() {
    const FloatWords4* scratch = Scratch();
    PENSTOCK_UNROLL
    for (int m = 0; m < kRowTiles; ++m) {
      const FloatWords4 saved = scratch[At(m, kOutputTiles)];
      SplitMerge merge[2];
      PENSTOCK_UNROLL
      for (int r = 0; r < 2; ++r) {
        float top = saved.value[r];
        merge[r] = MergeMaximum(top, max[m][r]);
        if (sum[m][r] == 0) merge[r] = {1, 0};
        max[m][r] = top;
        sum[m][r] = Merged(merge[r], saved.value[2 + r], sum[m][r]);
      }
      PENSTOCK_UNROLL
      for (int i = 0; i < kOutputTiles; ++i) {
        const FloatWords4 before = scratch[At(m, i)];
        PENSTOCK_UNROLL
        for (int x = 0; x < 4; ++x) {
          output[m][i][x] = Merged(merge[x / 2], before.value[x], output[m][i][x]);
        }
      }
    }
  }

  PENSTOCK_DEVICE void Run() {
    bool first = true;
    this->Tiles([&](int n) {
      this->SumLanes();
      if (!first) MergeSaved();
      first = false;
      if (n == this->LastTile()) return;
      Save();
      this->Reset();
    });
    this->Store();
  }
};

// Grid: tiles x KV heads.
template <KvCode kKeys, KvCode kValues, int kDim, bool kPlain>
__global__ void __launch_bounds__(WideShape<kKeys, kValues, kDim, kPlain>::kThreads)
    WideAttentionKernel(const __grid_constant__ AttentionParams p) {
  const AttentionTile tile = p.wide[BlockX()];
  if (tile.sequence < 0) return;  // padding
  WideBlock<WideShape<kKeys, kValues, kDim, kPlain>> block(p, tile);
  block.Run();
}

}  // namespace penstock::cuda
