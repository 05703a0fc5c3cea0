#pragma once

// Products of the rows of each expert with its matrix, by the warps of the dense products. An
// expert's number of rows is known on the device only, so the grid has blocks for as many as there
// can be; those without rows return.

#include "kernels/cuda/device/skinny_gemm.cuh"
#include "kernels/cuda/device/wide_gemm.cuh"
#include "kernels/cuda/experts.h"

namespace penstock::cuda {

// Grid: blocks of 64 outputs x slices x (experts x chunks of 8 * kColumns rows).
template <int kColumns>
__global__ void __launch_bounds__(kSkinnyWarps * 32)
    GroupedSkinnyGemmKernel(const __grid_constant__ GroupedParams p) {
  constexpr int kRows = SkinnyShape<kColumns>::kRows;
  const int expert = BlockZ() / p.chunks;
  const int first = p.first[expert] + BlockZ() % p.chunks * kRows;
  const int rows = p.first[expert + 1] - first;
  if (rows <= 0) return;
  const SkinnyParams part{.weight = p.weight.Of(expert),
                          .input = p.input + static_cast<int64_t>(first) * p.weight.inputs,
                          .input_stride = p.weight.inputs,
                          .rows = rows < kRows ? rows : kRows,
                          .output = p.output + static_cast<int64_t>(first) * p.weight.outputs,
                          .slice_stride = p.slice_stride,
                          .slice_inputs = p.slice_inputs};
  SkinnyWarp<kColumns> warp(part);
  warp.Run();
  warp.Store();
}

// Grid: tiles of rows x tiles of outputs x experts.
__global__ void __launch_bounds__(kWideThreads)
    GroupedWideGemmKernel(const __grid_constant__ GroupedParams p) {
  const int expert = BlockZ();
  const int first = p.first[expert], rows = p.first[expert + 1] - first;
  if (BlockX() * kWideTile >= rows) return;
  const WideParams part{.weight = p.weight.Of(expert),
                        .input = p.input + static_cast<int64_t>(first) * p.weight.inputs,
                        .input_stride = p.weight.inputs,
                        .rows = rows,
                        .output = p.output + static_cast<int64_t>(first) * p.weight.outputs,
                        .slice_stride = p.slice_stride,
                        .slice_inputs = p.slice_inputs,
                        .block_inputs = p.weight.inputs};
  WideWarp warp(part, /*slice=*/0);
  warp.Run();
  warp.Store();
}

}  // namespace penstock::cuda
