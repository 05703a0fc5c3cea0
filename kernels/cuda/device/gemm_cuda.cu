#include "kernels/cuda/device/skinny_gemm.cuh"
#include "kernels/cuda/device/wide_gemm.cuh"
#include "kernels/cuda/gemm.h"

namespace penstock::cuda {

// Grid: tiles of rows x tiles of outputs x slices, or 1. Tiles of rows come first, because they
// share the tile of the weight.
__global__ void __launch_bounds__(kWideThreads)
    WideGemmKernel(const __grid_constant__ WideParams p) {
  WideWarp warp(p, BlockZ());
  warp.Run();
  warp.Store();
}

namespace {

// Two blocks for each processor of the largest supported GPU. A constant, so that every GPU divides
// a weight in the same way.
constexpr int kBlocksWanted = 264;
constexpr int kProcessors = kBlocksWanted / 2;
constexpr int kSliceInputsMin = 512;
constexpr int kSliceCountMax = 8;

template <int kColumns>
void LaunchSkinny(const SkinnyParams& params, int slices, void* stream) {
  const int outputs = params.weight.outputs;
  const LaunchShape shape{.x = (outputs + 16 * kSkinnyWarps - 1) / (16 * kSkinnyWarps),
                          .y = slices,
                          .threads = kSkinnyWarps * 32,
                          .shared_bytes = SkinnyShape<kColumns>::kSharedBytes};
  Launch(&SkinnyGemmKernel<kColumns>, shape, params, stream);
}

void LaunchForRows(const SkinnyParams& params, int slices, void* stream) {
  if (params.rows <= 8) return LaunchSkinny<1>(params, slices, stream);
  if (params.rows <= 16) return LaunchSkinny<2>(params, slices, stream);
  if (params.rows <= 32) return LaunchSkinny<4>(params, slices, stream);
  LaunchSkinny<8>(params, slices, stream);
}

int Tiles(int size) { return (size + kWideTile - 1) / kWideTile; }

}  // namespace

int32_t SliceInputs(const Weight& weight) {
  const int blocks = (weight.outputs + 16 * kSkinnyWarps - 1) / (16 * kSkinnyWarps);
  int slices = kBlocksWanted / blocks;
  if (slices > kSliceCountMax) slices = kSliceCountMax;
  if (slices > weight.inputs / kSliceInputsMin) slices = weight.inputs / kSliceInputsMin;
  if (slices < 1) slices = 1;
  const int each = (weight.inputs + slices - 1) / slices;
  return (each + kSkinnyInputs - 1) / kSkinnyInputs * kSkinnyInputs;
}

int32_t SkinnySlices(const Weight& weight) {
  const int32_t inputs = SliceInputs(weight);
  return (weight.inputs + inputs - 1) / inputs;
}

Product SkinnyGemm(const Weight& weight, const Bf16* input, int rows, float* output, void* stream) {
  const int32_t slices = SkinnySlices(weight);
  const int64_t slice_stride = static_cast<int64_t>(rows) * weight.outputs;
  for (int first = 0; first < rows; first += kSkinnyRowsMax) {
    const SkinnyParams params{.weight = weight,
                              .input = input + static_cast<int64_t>(first) * weight.inputs,
                              .input_stride = weight.inputs,
                              .rows = rows - first < kSkinnyRowsMax ? rows - first : kSkinnyRowsMax,
                              .output = output + static_cast<int64_t>(first) * weight.outputs,
                              .slice_stride = slice_stride,
                              .slice_inputs = SliceInputs(weight)};
    LaunchForRows(params, slices, stream);
  }
  return {.data = output, .slice_stride = slice_stride, .slices = slices, .width = weight.outputs};
}

Product WideGemm(const Weight& weight, const Bf16* input, int rows, float* output, Slices slices,
                 void* stream) {
  const int32_t slice_inputs = SliceInputs(weight);
  const bool apart = slices == Slices::kApart;
  const WideParams params{.weight = weight,
                          .input = input,
                          .input_stride = weight.inputs,
                          .rows = rows,
                          .output = output,
                          .slice_stride = static_cast<int64_t>(rows) * weight.outputs,
                          .slice_inputs = slice_inputs,
                          .block_inputs = apart ? slice_inputs : weight.inputs};
  const int32_t parts = apart ? SkinnySlices(weight) : 1;
  const LaunchShape shape{.x = Tiles(rows),
                          .y = Tiles(weight.outputs),
                          .z = parts,
                          .threads = kWideThreads,
                          .shared_bytes = kWideSharedBytes};
  Launch(&WideGemmKernel, shape, params, stream);
  return {.data = output,
          .slice_stride = params.slice_stride,
          .slices = parts,
          .width = weight.outputs};
}

Product Gemm(const Weight& weight, const Bf16* input, int rows, float* output, void* stream) {
  if (rows <= kSkinnyRowsMax) return SkinnyGemm(weight, input, rows, output, stream);
  // Keep the slices apart if adding them up would leave too few blocks.
  const bool many = Tiles(rows) * Tiles(weight.outputs) >= kProcessors;
  const Slices slices = many ? Slices::kAddedUp : Slices::kApart;
  return WideGemm(weight, input, rows, output, slices, stream);
}

}  // namespace penstock::cuda
