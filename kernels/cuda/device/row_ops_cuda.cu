#include "kernels/cuda/device/other_row_ops.cuh"
#include "kernels/cuda/device/rope_append.cuh"
#include "kernels/cuda/device/row_ops.cuh"
#include "kernels/cuda/for_codes.h"
#include "kernels/cuda/row_ops.h"

namespace penstock::cuda {
namespace {

int PiecesOf(int32_t elements) { return (elements + 4 * kRowThreads - 1) / (4 * kRowThreads); }

}  // namespace

void Embedding(const EmbeddingParams& params, int rows, void* stream) {
  const bool plain = params.position_table == nullptr && params.multiplier == 1;
  Launch(plain ? &EmbeddingKernel : &PlacedEmbeddingKernel, {.x = rows, .threads = kRowThreads},
         params, stream);
}

void AddNorm(const NormParams& params, int rows, void* stream) {
  const LaunchShape shape{
      .x = rows, .threads = kRowThreads, .shared_bytes = kRowThreads / 32 * sizeof(float)};
  const int pieces = PiecesOf(params.hidden);
  const auto launch = [&](auto* plain, auto* other) {
    Launch(params.IsPlain() ? plain : other, shape, params, stream);
  };
  if (pieces <= 2) return launch(&AddRmsNormKernel<2>, &AddOtherNormKernel<2>);
  if (pieces <= 4) return launch(&AddRmsNormKernel<4>, &AddOtherNormKernel<4>);
  if (pieces <= 8) return launch(&AddRmsNormKernel<8>, &AddOtherNormKernel<8>);
  static_assert(4 * kRowThreads * 16 == kHiddenMax);
  launch(&AddRmsNormKernel<16>, &AddOtherNormKernel<16>);
}

void SiluGate(const SiluGateParams& params, int rows, void* stream) {
  const LaunchShape shape{
      .x = rows, .y = PiecesOf(params.product.width / 2), .threads = kRowThreads};
  Launch(&SiluGateKernel, shape, params, stream);
}

void Gelu(const GeluParams& params, int rows, void* stream) {
  const bool gate = params.kind == GeluKind::kTanhGate;
  const LaunchShape shape{.x = rows,
                          .y = PiecesOf(gate ? params.product.width / 2 : params.product.width),
                          .threads = kRowThreads};
  if (gate) return Launch(&GeluKernel<GeluKind::kTanhGate>, shape, params, stream);
  if (params.kind == GeluKind::kTanh) {
    return Launch(&GeluKernel<GeluKind::kTanh>, shape, params, stream);
  }
  Launch(&GeluKernel<GeluKind::kExact>, shape, params, stream);
}

void WideHeadNorm(const WideHeadNormParams& params, int rows, void* stream) {
  const LaunchShape shape{
      .x = rows, .y = 3, .threads = kRowThreads, .shared_bytes = kRowThreads / 32 * sizeof(float)};
  Launch(&WideHeadNormKernel, shape, params, stream);
}

void SumSlices(const SumSlicesParams& params, int rows, void* stream) {
  const int pieces = (params.product.width + kRowThreads - 1) / kRowThreads;
  const bool plain = params.factor == 1 && params.cap == 0;
  Launch(plain ? &SumSlicesKernel : &CapSlicesKernel,
         {.x = rows, .y = pieces, .threads = kRowThreads}, params, stream);
}

void GatherRows(const GatherRowsParams& params, int rows, void* stream) {
  Launch(&GatherRowsKernel, {.x = rows, .threads = kRowThreads}, params, stream);
}

void RopeAppend(const RopeAppendParams& params, void* stream) {
  const int64_t warps = int64_t{params.rows} * (params.heads + 2 * params.kv.kv_heads);
  const LaunchShape shape{.x = static_cast<int>((warps + kRopeWarps - 1) / kRopeWarps),
                          .threads = kRopeWarps * 32};
  ForShape(params.kv, [&]<KvCode kKeys, KvCode kValues, int kDim>() {
    const bool whole = params.rotary_dims == kDim;
    if constexpr (kKeys != KvCode::kBf16) {
      if (params.key_means != nullptr) {
        return Launch(whole ? &RopeAppendCentredKernel<kKeys, kValues, kDim, true>
                            : &RopeAppendCentredKernel<kKeys, kValues, kDim, false>,
                      shape, params, stream);
      }
      if (params.recent.layer != nullptr) {
        return Launch(whole ? &RopeAppendTwiceKernel<kKeys, kValues, kDim, true>
                            : &RopeAppendTwiceKernel<kKeys, kValues, kDim, false>,
                      shape, params, stream);
      }
    }
    Launch(whole ? &RopeAppendKernel<kKeys, kValues, kDim, true>
                 : &RopeAppendKernel<kKeys, kValues, kDim, false>,
           shape, params, stream);
  });
}

}  // namespace penstock::cuda
