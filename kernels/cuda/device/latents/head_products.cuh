#pragma once

// Products of every head's part of the rows with a matrix of that head, by the warps of the dense
// products, without slices.

#include "kernels/cuda/device/skinny_gemm.cuh"
#include "kernels/cuda/device/wide_gemm.cuh"
#include "kernels/cuda/latents/latents.h"

namespace penstock::cuda {

// One slice, which ends where a stage of either kernel does.
PENSTOCK_DEVICE int32_t WholeSlice(int32_t inputs) {
  return (inputs + kSkinnyInputs - 1) / kSkinnyInputs * kSkinnyInputs;
}

// The part of one head.
struct HeadPart {
  Weight weight;
  const Bf16* input;
  int64_t input_stride;
  Bf16* output;
  int64_t output_stride;

  PENSTOCK_DEVICE HeadPart(const HeadProductParams& p, int head)
      : weight{.data = p.matrices + static_cast<int64_t>(head) * p.outputs * p.inputs,
               .outputs = p.outputs,
               .inputs = p.inputs},
        input(p.input + head * p.input_step),
        input_stride(static_cast<int64_t>(p.heads) * p.input_step),
        output(p.output + head * p.outputs),
        output_stride(static_cast<int64_t>(p.heads) * p.outputs) {}

  PENSTOCK_DEVICE void Set(int row, int column, float value) const {
    output[row * output_stride + column].bits = static_cast<uint16_t>(RoundBf16(value));
  }
};

// For up to 8 * kColumns rows. Grid: blocks of 64 outputs x 1 x heads.
template <int kColumns>
__global__ void __launch_bounds__(kSkinnyWarps * 32)
    HeadSkinnyKernel(const __grid_constant__ HeadProductParams p) {
  const HeadPart head(p, BlockZ());
  const SkinnyParams part{.weight = head.weight,
                          .input = head.input,
                          .input_stride = head.input_stride,
                          .rows = p.rows,
                          .slice_inputs = WholeSlice(p.inputs)};
  SkinnyWarp<kColumns> warp(part);
  warp.Run();
  warp.ForEach([&](int row, int column, float sum) { head.Set(row, column, sum); });
}

// Grid: tiles of rows x tiles of outputs x heads.
__global__ void __launch_bounds__(kWideThreads)
    HeadWideKernel(const __grid_constant__ HeadProductParams p) {
  const HeadPart head(p, BlockZ());
  const WideParams part{.weight = head.weight,
                        .input = head.input,
                        .input_stride = head.input_stride,
                        .rows = p.rows,
                        .slice_inputs = WholeSlice(p.inputs),
                        .block_inputs = p.inputs};
  WideWarp warp(part, /*slice=*/0);
  warp.Run();
  warp.ForEach([&](int row, int column, float sum) { head.Set(row, column, sum); });
}

}  // namespace penstock::cuda
