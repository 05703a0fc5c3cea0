#include "kernels/cuda/device/experts/grouped_quantised_gemm.cuh"
#include "kernels/cuda/device/weights/expand_weight.cuh"
#include "kernels/cuda/device/weights/for_form.cuh"
#include "kernels/cuda/experts.h"

namespace penstock::cuda {
namespace {

int32_t Pieces(int64_t size, int64_t each) {
  return static_cast<int32_t>((size + each - 1) / each);
}

// The outputs and rows that one block computes, and the threads and shared memory that it takes.
struct GroupedGrid {
  int32_t outputs, rows;
  int threads, shared_bytes;
};

template <class Kernel>
void LaunchGrouped(Kernel kernel, const GroupedGrid& grid, const GroupedWeight& weight,
                   GroupedCodeParams params, void* stream) {
  const QuantisedParams& first = params.first_expert;
  params.chunks = Pieces(first.rows, grid.rows);
  const LaunchShape shape{.x = Pieces(first.outputs, grid.outputs),
                          .y = Pieces(first.inputs, first.slice_inputs),
                          .z = weight.experts * params.chunks,
                          .threads = grid.threads,
                          .shared_bytes = static_cast<size_t>(grid.shared_bytes)};
  Launch(kernel, shape, params, stream);
}

template <Expansion kExpansion, int kColumns, int kPanels = 2>
void LaunchBlocks(const GroupedWeight& weight, const GroupedCodeParams& params, void* stream) {
  using Shape = QuantisedShape<kColumns, kPanels, 1>;
  if constexpr (Shape::SharedBytesMax(kExpansion) > kSharedBytesOfAll) {
    if (Shape::SharedBytes(params.first_expert.chunk) > kSharedBytesOfAll) {
      return LaunchBlocks<kExpansion, kColumns, 1>(weight, params, stream);
    }
  }
  LaunchGrouped(&GroupedBlocksKernel<kExpansion, kColumns, kPanels>,
                {.outputs = kPanels * kCodePanel,
                 .rows = Shape::kRows,
                 .threads = Shape::kThreads,
                 .shared_bytes = Shape::SharedBytes(params.first_expert.chunk)},
                weight, params, stream);
}

// A warp for each panel: all experts together have enough panels to keep all processors busy.
template <Expansion kExpansion, int kColumns>
void LaunchWarps(const GroupedWeight& weight, const GroupedCodeParams& params, void* stream) {
  using Shape = WarpShape<kColumns>;
  LaunchGrouped(&GroupedWarpsKernel<kExpansion, kColumns>,
                {.outputs = kPanelWarps * kCodePanel,
                 .rows = Shape::kRows,
                 .threads = Shape::kThreads,
                 .shared_bytes = Shape::kStages * Shape::StageBytes(params.first_expert.chunk)},
                weight, params, stream);
}

}  // namespace

Product GroupedQuantisedGemm(const GroupedWeight& weight, const GroupedRows& rows, int columns,
                             float* output, void* stream) {
  const int64_t slice_stride = static_cast<int64_t>(rows.pairs) * weight.outputs;
  for (int i = 0; i < weight.section_count; ++i) {
    const WeightCodes& codes = weight.sections[i];
    const GroupedCodeParams params{.first_expert = {.panels = codes.data,
                                                    .chunk = LayoutOf(codes.form),
                                                    .outputs = codes.outputs,
                                                    .inputs = weight.inputs,
                                                    .input = rows.input,
                                                    .rows = rows.rows,
                                                    .output = output + codes.first_output,
                                                    .output_stride = weight.outputs,
                                                    .slice_stride = slice_stride,
                                                    .slice_inputs = SliceInputs(weight.Of(0))},
                                   .expert_bytes = weight.expert_bytes,
                                   .first = rows.first};
    ForExpansion(codes.form, [&](auto expansion) {
      constexpr Expansion kExpansion = decltype(expansion)::value;
      if (columns > 4) return LaunchBlocks<kExpansion, 8>(weight, params, stream);
      if (columns > 2) return LaunchBlocks<kExpansion, 4>(weight, params, stream);
      if (columns > 1) return LaunchWarps<kExpansion, 2>(weight, params, stream);
      LaunchWarps<kExpansion, 1>(weight, params, stream);
    });
  }
  return {.data = output,
          .slice_stride = slice_stride,
          .slices = SkinnySlices(weight.Of(0)),
          .width = weight.outputs};
}

void ExpandExperts(const GroupedWeight& weight, int32_t first, int32_t count, Bf16* target,
                   void* stream) {
  for (int i = 0; i < weight.section_count; ++i) {
    const WeightCodes& codes = weight.sections[i];
    const ExpandParams params{
        .panels = codes.data + first * weight.expert_bytes,
        .chunk = LayoutOf(codes.form),
        .outputs = codes.outputs,
        .inputs = weight.inputs,
        .target = target + static_cast<int64_t>(codes.first_output) * weight.inputs,
        .panels_stride = weight.expert_bytes,
        .target_stride = static_cast<int64_t>(weight.outputs) * weight.inputs};
    const LaunchShape shape{.x = static_cast<int>(ChunksOf(weight.inputs)),
                            .y = Pieces(PanelsOf(codes.outputs), kExpandWarps),
                            .z = count,
                            .threads = kExpandWarps * 32,
                            .shared_bytes = kExpandWarps * kExpandWarpBytes};
    ForExpansion(codes.form, [&](auto expansion) {
      Launch(&ExpandKernel<decltype(expansion)::value, InputOrder::kOwn>, shape, params, stream);
    });
  }
}

}  // namespace penstock::cuda
