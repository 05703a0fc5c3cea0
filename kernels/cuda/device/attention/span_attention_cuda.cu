#include "kernels/cuda/device/attention/span_attention.cuh"
#include "kernels/cuda/device/attention/span_attention.h"
#include "kernels/cuda/for_codes.h"

namespace penstock::cuda {
namespace {

template <KvCode kKeys, KvCode kValues, int kDim>
void EnqueueSpan(const AttentionParams& params, const AttentionCounts& counts, void* stream) {
  if (counts.wide > 0) {
    Launch(&WideSpanKernel<kKeys, kValues, kDim>,
           SpanGridOf<WideSpanShape<kKeys, kValues, kDim>>(counts.wide, params), params, stream);
  }
  if (counts.narrow > 0) {
    Launch(&NarrowSpanKernel<kKeys, kValues, kDim>,
           SpanGridOf<NarrowSpanShape<kKeys, kValues, kDim>>(counts.items, params), params, stream);
  }
}

}  // namespace

void SpanAttention(const AttentionParams& params, const AttentionCounts& counts, void* stream) {
  ForShape(params.kv, [&]<KvCode kKeys, KvCode kValues, int kDim>() {
    if constexpr (kKeys != KvCode::kBf16) {
      EnqueueSpan<kKeys, kValues, kDim>(params, counts, stream);
    }
  });
}

}  // namespace penstock::cuda
