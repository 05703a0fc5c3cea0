#pragma once

// Attention of rows that have chosen their pages, for each KV head others. Kernels of their own,
// because one more stride changes the registers of all others.

#include "kernels/cuda/device/attention/narrow_attention.cuh"

namespace penstock::cuda {

template <class Shape>
struct ChosenBlock : AttentionBlock<Shape> {
  PENSTOCK_DEVICE ChosenBlock(const AttentionParams& params, AttentionTile work)
      : AttentionBlock<Shape>(params, work) {
    this->table += this->kv_head * params.head_table_stride;
  }
};

// Grid: items x KV heads.
template <KvCode kKeys, KvCode kValues, int kDim, bool kPlain>
__global__ void __launch_bounds__(NarrowShape<kKeys, kValues, kDim, kPlain>::kThreads)
    ChosenAttentionKernel(const __grid_constant__ AttentionParams p) {
  const SplitItem item = p.items[BlockX()];
  if (item.tile < 0) return;  // padding
  NarrowBlock<NarrowShape<kKeys, kValues, kDim, kPlain>, ChosenBlock> block(p, p.narrow[item.tile]);
  block.Run(item.split);
}

}  // namespace penstock::cuda
