#include "kernels/cuda/device/rope_append.cuh"
#include "kernels/cuda/device/row_ops.cuh"
#include "kernels/cuda/for_codes.h"
#include "kernels/cuda/row_ops.h"

namespace penstock::cuda {
namespace {

int PiecesOf(int32_t elements) { return (elements + 4 * kRowThreads - 1) / (4 * kRowThreads); }

}  // namespace

void Embedding(const EmbeddingParams& params, int rows, void* stream) {
  Launch(&EmbeddingKernel, {.x = rows, .threads = kRowThreads}, params, stream);
}

void AddRmsNorm(const NormParams& params, int rows, void* stream) {
  const LaunchShape shape{
      .x = rows, .threads = kRowThreads, .shared_bytes = kRowThreads / 32 * sizeof(float)};
  const int pieces = PiecesOf(params.hidden);
  if (pieces <= 2) return Launch(&AddRmsNormKernel<2>, shape, params, stream);
  if (pieces <= 4) return Launch(&AddRmsNormKernel<4>, shape, params, stream);
  if (pieces <= 8) return Launch(&AddRmsNormKernel<8>, shape, params, stream);
  static_assert(4 * kRowThreads * 16 == kHiddenMax);
  Launch(&AddRmsNormKernel<16>, shape, params, stream);
}

void SiluGate(const SiluGateParams& params, int rows, void* stream) {
  const LaunchShape shape{
      .x = rows, .y = PiecesOf(params.product.width / 2), .threads = kRowThreads};
  Launch(&SiluGateKernel, shape, params, stream);
}

void SumSlices(const SumSlicesParams& params, int rows, void* stream) {
  const int pieces = (params.product.width + kRowThreads - 1) / kRowThreads;
  Launch(&SumSlicesKernel, {.x = rows, .y = pieces, .threads = kRowThreads}, params, stream);
}

void GatherRows(const GatherRowsParams& params, int rows, void* stream) {
  Launch(&GatherRowsKernel, {.x = rows, .threads = kRowThreads}, params, stream);
}

void RopeAppend(const RopeAppendParams& params, void* stream) {
  const int64_t warps = int64_t{params.rows} * (params.heads + 2 * params.kv.kv_heads);
  const LaunchShape shape{.x = static_cast<int>((warps + kRopeWarps - 1) / kRopeWarps),
                          .threads = kRopeWarps * 32};
  ForShape(params.kv, [&]<KvCode kKeys, KvCode kValues, int kDim>() {
    Launch(&RopeAppendKernel<kKeys, kValues, kDim>, shape, params, stream);
  });
}

}  // namespace penstock::cuda
