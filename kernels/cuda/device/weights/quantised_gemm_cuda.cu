#include <bit>

#include "kernels/cuda/device/weights/expand_weight.cuh"
#include "kernels/cuda/device/weights/for_form.cuh"
#include "kernels/cuda/device/weights/quantised_gemm.cuh"
#include "kernels/cuda/device/weights/warp_gemm.cuh"
#include "kernels/cuda/quantised_gemm.h"

namespace penstock::cuda {
namespace {

// From so many panels on, a warp for each of them is enough to keep all processors busy.
constexpr int64_t kManyPanels = 1024;

int SlicesOf(const QuantisedParams& params) {
  return (params.inputs + params.slice_inputs - 1) / params.slice_inputs;
}

template <Expansion kExpansion, InputOrder kOrder, int kColumns, int kPanels, int kSpan>
void LaunchBlocks(const QuantisedParams& params, void* stream) {
  using Shape = QuantisedShape<kColumns, kPanels, kSpan>;
  if constexpr (Shape::SharedBytesMax(kExpansion) > kSharedBytesOfAll) {
    if (Shape::SharedBytes(params.chunk) > kSharedBytesOfAll) {
      return LaunchBlocks<kExpansion, kOrder, kColumns, 1, 1>(params, stream);
    }
  }
  const LaunchShape shape{.x = static_cast<int>((PanelsOf(params.outputs) + kPanels - 1) / kPanels),
                          .y = SlicesOf(params),
                          .threads = Shape::kThreads,
                          .shared_bytes = static_cast<size_t>(Shape::SharedBytes(params.chunk))};
  Launch(&QuantisedGemmKernel<kExpansion, kOrder, kColumns, kPanels, kSpan>, shape, params, stream);
}

template <Expansion kExpansion, InputOrder kOrder, int kColumns>
void LaunchWarps(const QuantisedParams& params, void* stream) {
  using Shape = WarpShape<kColumns>;
  const LaunchShape shape{
      .x = static_cast<int>((PanelsOf(params.outputs) + kPanelWarps - 1) / kPanelWarps),
      .y = SlicesOf(params),
      .threads = Shape::kThreads,
      .shared_bytes = static_cast<size_t>(Shape::kStages * Shape::StageBytes(params.chunk))};
  Launch(&WarpGemmKernel<kExpansion, kOrder, kColumns>, shape, params, stream);
}

void LaunchRows(const CodeForm& form, const QuantisedParams& params, void* stream) {
  const bool many = PanelsOf(params.outputs) >= kManyPanels;
  ForForm(form, [&](auto expansion, auto order) {
    constexpr Expansion kExpansion = decltype(expansion)::value;
    constexpr InputOrder kOrder = decltype(order)::value;
    if (params.rows > 32) return LaunchBlocks<kExpansion, kOrder, 8, 2, 1>(params, stream);
    if (params.rows > 16) return LaunchBlocks<kExpansion, kOrder, 4, 2, 1>(params, stream);
    if (params.rows > 8) {
      return many ? LaunchWarps<kExpansion, kOrder, 2>(params, stream)
                  : LaunchBlocks<kExpansion, kOrder, 2, 1, 2>(params, stream);
    }
    many ? LaunchWarps<kExpansion, kOrder, 1>(params, stream)
         : LaunchBlocks<kExpansion, kOrder, 1, 1, 2>(params, stream);
  });
}

}  // namespace

ChunkLayout LayoutOf(const CodeForm& form) {
  return {.zeros_at = form.zeros_at(),
          .offsets_at = form.offsets_at(),
          .codes_at = form.codes_at(),
          .bytes = form.chunk_bytes(),
          .group_halves_log2 = std::countr_zero(static_cast<uint32_t>(form.group) / 16),
          .zero = form.zero,
          .zeros = form.zeros,
          .offsets = form.offsets};
}

Product QuantisedGemm(const Weight& weight, const Bf16* input, int rows, float* output,
                      void* stream) {
  const bool sliced = weight.sections[0].form.order == InputOrder::kOwn;
  const int64_t slice_stride = static_cast<int64_t>(rows) * weight.outputs;
  for (int first = 0; first < rows; first += kSkinnyRowsMax) {
    for (int i = 0; i < weight.section_count; ++i) {
      const WeightCodes& codes = weight.sections[i];
      LaunchRows(
          codes.form,
          {.panels = codes.data,
           .chunk = LayoutOf(codes.form),
           .outputs = codes.outputs,
           .inputs = weight.inputs,
           .input = input + static_cast<int64_t>(first) * weight.inputs,
           .rows = rows - first < kSkinnyRowsMax ? rows - first : kSkinnyRowsMax,
           .output = output + static_cast<int64_t>(first) * weight.outputs + codes.first_output,
           .output_stride = weight.outputs,
           .slice_stride = slice_stride,
           .slice_inputs = sliced ? SliceInputs(weight)
                                  : static_cast<int32_t>(ChunksOf(weight.inputs)) * kCodeInputs},
          stream);
    }
  }
  return {.data = output,
          .slice_stride = slice_stride,
          .slices = sliced ? SkinnySlices(weight) : 1,
          .width = weight.outputs};
}

void ExpandWeight(const Weight& weight, Bf16* target, void* stream) {
  for (int i = 0; i < weight.section_count; ++i) {
    const WeightCodes& codes = weight.sections[i];
    const ExpandParams params{
        .panels = codes.data,
        .chunk = LayoutOf(codes.form),
        .outputs = codes.outputs,
        .inputs = weight.inputs,
        .target = target + static_cast<int64_t>(codes.first_output) * weight.inputs};
    const LaunchShape shape{
        .x = static_cast<int>(ChunksOf(weight.inputs)),
        .y = static_cast<int>((PanelsOf(codes.outputs) + kExpandWarps - 1) / kExpandWarps),
        .threads = kExpandWarps * 32,
        .shared_bytes = kExpandWarps * kExpandWarpBytes};
    ForForm(codes.form, [&](auto expansion, auto order) {
      Launch(&ExpandKernel<decltype(expansion)::value, decltype(order)::value>, shape, params,
             stream);
    });
  }
}

}  // namespace penstock::cuda
