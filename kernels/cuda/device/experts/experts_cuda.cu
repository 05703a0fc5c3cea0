#include "kernels/cuda/device/experts/grouped_gemm.cuh"
#include "kernels/cuda/device/experts/mix.cuh"
#include "kernels/cuda/device/experts/route.cuh"
#include "kernels/cuda/experts.h"

namespace penstock::cuda {
namespace {

// The wide kernel multiplies where experts have at least this many rows on average. With fewer,
// most rows of its tiles would be empty; and codes are worth expanding only if one pass over them
// is not enough.
constexpr int64_t kWideAverage = 32, kExpandedAverage = kSkinnyRowsMax + 1;
constexpr int64_t kGridZMax = 65535;

int64_t Pieces(int64_t size, int64_t each) { return (size + each - 1) / each; }

GroupedParams ParamsOf(const GroupedWeight& weight, const GroupedRows& rows, float* output) {
  return {.weight = weight,
          .input = rows.input,
          .first = rows.first,
          .output = output,
          .slice_stride = static_cast<int64_t>(rows.pairs) * weight.outputs,
          .slice_inputs = SliceInputs(weight.Of(0))};
}

Product ProductOf(const GroupedParams& params, int32_t slices) {
  return {.data = params.output,
          .slice_stride = params.slice_stride,
          .slices = slices,
          .width = params.weight.outputs};
}

template <int kColumns>
void LaunchSkinny(GroupedParams params, const GroupedRows& rows, int32_t slices, void* stream) {
  const GroupedWeight& weight = params.weight;
  params.chunks = static_cast<int32_t>(Pieces(rows.rows, SkinnyShape<kColumns>::kRows));
  const LaunchShape shape{.x = static_cast<int>(Pieces(weight.outputs, 16 * kSkinnyWarps)),
                          .y = slices,
                          .z = weight.experts * params.chunks,
                          .threads = kSkinnyWarps * 32,
                          .shared_bytes = SkinnyShape<kColumns>::kSharedBytes};
  Launch(&GroupedSkinnyGemmKernel<kColumns>, shape, params, stream);
}

int64_t WideAverage(const GroupedWeight& weight) {
  return weight.quantised() ? kExpandedAverage : kWideAverage;
}

// GroupedWideGemm with matrices that are expanded, some after the others.
Product ExpandedGemm(const GroupedWeight& weight, const GroupedRows& rows, const GroupedRoom& room,
                     void* stream) {
  Product product;
  for (int32_t first = 0; first < weight.experts; first += room.expanded_experts) {
    const int32_t left = weight.experts - first;
    const int32_t count = left < room.expanded_experts ? left : room.expanded_experts;
    ExpandExperts(weight, first, count, room.expanded, stream);
    const GroupedWeight expanded{.data = room.expanded,
                                 .outputs = weight.outputs,
                                 .inputs = weight.inputs,
                                 .experts = count};
    GroupedRows of_these = rows;
    of_these.first += first;
    product = GroupedWideGemm(expanded, of_these, room.output, stream);
  }
  return product;
}

// Wide enough for most experts, so that few of them read their matrix more than once.
int ColumnsFor(int64_t average) {
  return average <= 4 ? 1 : average <= 8 ? 2 : average <= 16 ? 4 : 8;
}

}  // namespace

void Score(const ScoreParams& params, void* stream) {
  const LaunchShape shape{.x = static_cast<int>(Pieces(params.rows, kScoreRows)),
                          .y = static_cast<int>(Pieces(params.count, kScoreWarps)),
                          .threads = kRowThreads};
  Launch(&ScoreKernel, shape, params, stream);
}

void Route(const RouteParams& params, int rows, void* stream) {
  Launch(&RouteKernel, {.x = rows, .threads = 32}, params, stream);
}

void Group(const GroupParams& params, void* stream) {
  const LaunchShape shape{.x = params.experts,
                          .threads = kRowThreads,
                          .shared_bytes = kRowThreads / 32 * sizeof(uint32_t)};
  Launch(&GroupKernel, shape, params, stream);
}

void ClampedGate(const ClampedGateParams& params, int pairs, void* stream) {
  const int32_t half = params.product.width / 2;
  const LaunchShape shape{
      .x = pairs, .y = static_cast<int>(Pieces(half, 4 * kRowThreads)), .threads = kRowThreads};
  Launch(&ClampedGateKernel, shape, params, stream);
}

void Mix(const MixParams& params, int rows, void* stream) {
  const LaunchShape shape{.x = rows,
                          .y = static_cast<int>(Pieces(params.product.width, 4 * kRowThreads)),
                          .threads = kRowThreads};
  Launch(&MixKernel, shape, params, stream);
}

Product GroupedSkinnyGemm(const GroupedWeight& weight, const GroupedRows& rows, int columns,
                          float* output, void* stream) {
  const GroupedParams params = ParamsOf(weight, rows, output);
  const int32_t slices = SkinnySlices(weight.Of(0));
  switch (columns) {
    case 1:
      LaunchSkinny<1>(params, rows, slices, stream);
      break;
    case 2:
      LaunchSkinny<2>(params, rows, slices, stream);
      break;
    case 4:
      LaunchSkinny<4>(params, rows, slices, stream);
      break;
    default:
      LaunchSkinny<8>(params, rows, slices, stream);
  }
  return ProductOf(params, slices);
}

Product GroupedWideGemm(const GroupedWeight& weight, const GroupedRows& rows, float* output,
                        void* stream) {
  const GroupedParams params = ParamsOf(weight, rows, output);
  const LaunchShape shape{.x = static_cast<int>(Pieces(rows.rows, kWideTile)),
                          .y = static_cast<int>(Pieces(weight.outputs, kWideTile)),
                          .z = weight.experts,
                          .threads = kWideThreads,
                          .shared_bytes = kWideSharedBytes};
  Launch(&GroupedWideGemmKernel, shape, params, stream);
  return ProductOf(params, 1);
}

Product GroupedGemm(const GroupedWeight& weight, const GroupedRows& rows, const GroupedRoom& room,
                    void* stream) {
  const int64_t average = rows.pairs / weight.experts;
  const int columns = ColumnsFor(average);
  const int64_t chunks = Pieces(rows.rows, 8 * columns);
  const bool wide = average >= WideAverage(weight) || weight.experts * chunks > kGridZMax;
  if (weight.quantised()) {
    if (wide) return ExpandedGemm(weight, rows, room, stream);
    return GroupedQuantisedGemm(weight, rows, columns, room.output, stream);
  }
  if (wide) return GroupedWideGemm(weight, rows, room.output, stream);
  return GroupedSkinnyGemm(weight, rows, columns, room.output, stream);
}

int64_t GroupedFloats(const GroupedWeight& weight, int64_t pairs) {
  const int64_t sliced_max = WideAverage(weight) * weight.experts;
  const int64_t few = pairs < sliced_max ? pairs : sliced_max;
  const int64_t sliced = few * SkinnySlices(weight.Of(0));
  return (pairs > sliced ? pairs : sliced) * weight.outputs;
}

}  // namespace penstock::cuda
