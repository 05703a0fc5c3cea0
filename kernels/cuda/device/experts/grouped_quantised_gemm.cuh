#pragma once

// Products of the rows of each expert with the codes of its matrix, by the blocks and warps of the
// dense products with codes. As in grouped_gemm.cuh, blocks without rows return.

#include "kernels/cuda/device/weights/warp_gemm.cuh"
#include "kernels/cuda/experts.h"

namespace penstock::cuda {

// The part of a block; without rows there is none.
PENSTOCK_DEVICE QuantisedParams PartOf(const GroupedCodeParams& p, int kernel_rows) {
  const int expert = BlockZ() / p.chunks;
  const int first = p.first[expert] + BlockZ() % p.chunks * kernel_rows;
  const int rows = p.first[expert + 1] - first;
  QuantisedParams part = p.first_expert;
  part.panels += expert * p.expert_bytes;
  part.input += static_cast<int64_t>(first) * part.inputs;
  part.output += first * part.output_stride;
  part.rows = rows < kernel_rows ? rows : kernel_rows;
  return part;
}

// Grid: panels / kPanels x slices x (experts x chunks of 8 * kColumns rows).
template <Expansion kExpansion, int kColumns, int kPanels>
__global__ void __launch_bounds__(QuantisedShape<kColumns, kPanels, 1>::kThreads)
    GroupedBlocksKernel(const __grid_constant__ GroupedCodeParams p) {
  using Shape = QuantisedShape<kColumns, kPanels, 1>;
  const QuantisedParams part = PartOf(p, Shape::kRows);
  if (part.rows <= 0) return;
  QuantisedBlock<kExpansion, InputOrder::kOwn, kColumns, kPanels, 1> block(part);
  block.Run();
  block.Store();
}

// Grid: four panels x slices x (experts x chunks of 8 * kColumns rows).
template <Expansion kExpansion, int kColumns>
__global__ void __launch_bounds__(WarpShape<kColumns>::kThreads)
    GroupedWarpsKernel(const __grid_constant__ GroupedCodeParams p) {
  const QuantisedParams part = PartOf(p, WarpShape<kColumns>::kRows);
  if (part.rows <= 0) return;
  QuantisedWarp<kExpansion, InputOrder::kOwn, kColumns> warp(part);
  warp.Run();
  warp.Store();
}

}  // namespace penstock::cuda
