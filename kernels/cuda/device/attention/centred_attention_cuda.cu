#include "kernels/cuda/device/attention/span_attention.cuh"
#include "kernels/cuda/device/attention/span_attention.h"
#include "kernels/cuda/for_codes.h"

namespace penstock::cuda {
namespace {

template <KvCode kKeys, KvCode kValues, int kDim>
void EnqueueCentred(const AttentionParams& params, const AttentionCounts& counts, void* stream) {
  if (counts.wide > 0) {
    Launch(&WideCentredKernel<kKeys, kValues, kDim>,
           SpanGridOf<WideSpanShape<kKeys, kValues, kDim, true>>(counts.wide, params), params,
           stream);
  }
  if (counts.narrow > 0) {
    Launch(&NarrowCentredKernel<kKeys, kValues, kDim>,
           SpanGridOf<NarrowSpanShape<kKeys, kValues, kDim, true>>(counts.items, params), params,
           stream);
  }
}

}  // namespace

void CentredAttention(const AttentionParams& params, const AttentionCounts& counts, void* stream) {
  ForShape(params.kv, [&]<KvCode kKeys, KvCode kValues, int kDim>() {
    if constexpr (kKeys != KvCode::kBf16) {
      EnqueueCentred<kKeys, kValues, kDim>(params, counts, stream);
    }
  });
}

}  // namespace penstock::cuda
