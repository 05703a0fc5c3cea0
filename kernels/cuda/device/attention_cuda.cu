#include "kernels/cuda/attention.h"
#include "kernels/cuda/device/decode_attention.cuh"
#include "kernels/cuda/device/prefill_attention.cuh"
#include "kernels/cuda/for_codes.h"

namespace penstock::cuda {
namespace {

template <KvCode kKeys, KvCode kValues, int kDim, int kColumns>
void LaunchDecode(const DecodeParams& params, int items, void* stream) {
  constexpr int kStages = kKeys == KvCode::kBf16 ? 3 : 4;
  using Shape = DecodeShape<kKeys, kValues, kDim, kColumns, kStages>;
  const LaunchShape shape{.x = items,
                          .y = params.kv.kv_heads,
                          .z = (params.group + Shape::kHeads - 1) / Shape::kHeads,
                          .threads = kDecodeWarps * 32,
                          .shared_bytes = Shape::kSharedBytes};
  Launch(&DecodeAttentionKernel<kKeys, kValues, kDim, kColumns, kStages>, shape, params, stream);
}

struct Nothing {
  template <KvCode, KvCode, int>
  void operator()() const {}
};

}  // namespace

bool SupportsKv(const KvPlanes& kv) {
  return kv.page_log2 >= 4 && kv.page_log2 <= 10 && ForShape(kv, Nothing());
}

void DecodeAttention(const DecodeParams& params, int items, int sequences, void* stream) {
  ForShape(params.kv, [&]<KvCode kKeys, KvCode kValues, int kDim>() {
    if (params.group <= 8) {
      LaunchDecode<kKeys, kValues, kDim, 1>(params, items, stream);
    } else {
      LaunchDecode<kKeys, kValues, kDim, 2>(params, items, stream);
    }
    if (params.max_splits == 1) return;
    const LaunchShape shape{.x = params.heads, .y = sequences, .threads = kDim};
    Launch(&CombineKernel<kDim>, shape, params, stream);
  });
}

void PrefillAttention(const PrefillParams& params, int tiles, void* stream) {
  ForShape(params.kv, [&]<KvCode kKeys, KvCode kValues, int kDim>() {
    using Shape = PrefillShape<kDim>;
    const LaunchShape shape{.x = tiles,
                            .y = params.kv.kv_heads,
                            .threads = Shape::kThreads,
                            .shared_bytes = Shape::kSharedBytes};
    Launch(&PrefillAttentionKernel<kKeys, kValues, kDim>, shape, params, stream);
  });
}

}  // namespace penstock::cuda
