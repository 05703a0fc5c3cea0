#include "kernels/cuda/device/attention/chosen_attention.cuh"
#include "kernels/cuda/device/attention/chosen_attention.h"
#include "kernels/cuda/for_codes.h"

namespace penstock::cuda {
namespace {

template <KvCode kKeys, KvCode kValues, int kDim, bool kPlain>
void EnqueueChosen(const AttentionParams& params, const AttentionCounts& counts, void* stream) {
  using Narrow = NarrowShape<kKeys, kValues, kDim, kPlain>;
  Launch(&ChosenAttentionKernel<kKeys, kValues, kDim, kPlain>,
         {.x = counts.items,
          .y = params.kv.kv_heads,
          .threads = Narrow::kThreads,
          .shared_bytes = Narrow::kSharedBytes},
         params, stream);
}

}  // namespace

void ChosenAttention(const AttentionParams& params, const AttentionCounts& counts, void* stream) {
  ForShape(params.kv, [&]<KvCode kKeys, KvCode kValues, int kDim>() {
    const bool plain = params.cap_factor == 0 && params.sinks == nullptr;
    if (plain) return EnqueueChosen<kKeys, kValues, kDim, true>(params, counts, stream);
    EnqueueChosen<kKeys, kValues, kDim, false>(params, counts, stream);
  });
}

}  // namespace penstock::cuda
