#include "kernels/cuda/attention.h"
#include "kernels/cuda/device/attention/chosen_attention.h"
#include "kernels/cuda/device/attention/narrow_attention.cuh"
#include "kernels/cuda/device/attention/span_attention.h"
#include "kernels/cuda/device/attention/wide_attention.cuh"
#include "kernels/cuda/for_codes.h"

namespace penstock::cuda {
namespace {

struct Nothing {
  template <KvCode, KvCode, int>
  void operator()() const {}
};

template <class Shape>
LaunchShape GridOf(int x, const AttentionParams& params) {
  return {.x = x,
          .y = params.kv.kv_heads,
          .threads = Shape::kThreads,
          .shared_bytes = Shape::kSharedBytes};
}

template <KvCode kValues, int kDim, bool kPlain>
void MergeSplits(const AttentionParams& params, const AttentionCounts& counts, void* stream) {
  if (counts.narrow == 0 || !HasSplits(params)) return;
  constexpr bool kRotated = IsLevels(kValues);
  const LaunchShape shape{.x = counts.narrow,
                          .y = params.kv.kv_heads,
                          .z = kNarrowRows,
                          .threads = kMergeThreads<kDim, kRotated>};
  Launch(&MergeSplitsKernel<kDim, kPlain, kRotated>, shape, params, stream);
}

template <KvCode kKeys, KvCode kValues, int kDim, bool kPlain>
void Enqueue(const AttentionParams& params, const AttentionCounts& counts, void* stream) {
  using Wide = WideShape<kKeys, kValues, kDim, kPlain>;
  using Narrow = NarrowShape<kKeys, kValues, kDim, kPlain>;
  if (counts.wide > 0) {
    Launch(&WideAttentionKernel<kKeys, kValues, kDim, kPlain>, GridOf<Wide>(counts.wide, params),
           params, stream);
  }
  if (counts.narrow == 0) return;
  Launch(&NarrowAttentionKernel<kKeys, kValues, kDim, kPlain>, GridOf<Narrow>(counts.items, params),
         params, stream);
  MergeSplits<kValues, kDim, kPlain>(params, counts, stream);
}

}  // namespace

bool SupportsKv(const KvPlanes& kv) {
  return kv.page_log2 >= 4 && kv.page_log2 <= 10 && ForShape(kv, Nothing());
}

void Attention(const AttentionParams& params, const AttentionCounts& counts, void* stream) {
  ForShape(params.kv, [&]<KvCode kKeys, KvCode kValues, int kDim>() {
    if (params.span > 0) {
      const auto attention = params.centre_queries == nullptr ? &SpanAttention : &CentredAttention;
      attention(params, counts, stream);
      return MergeSplits<kValues, kDim, true>(params, counts, stream);
    }
    const bool plain = params.cap_factor == 0 && params.sinks == nullptr;
    if (params.head_table_stride > 0) {
      ChosenAttention(params, counts, stream);
      if (plain) return MergeSplits<kValues, kDim, true>(params, counts, stream);
      return MergeSplits<kValues, kDim, false>(params, counts, stream);
    }
    if (plain) return Enqueue<kKeys, kValues, kDim, true>(params, counts, stream);
    Enqueue<kKeys, kValues, kDim, false>(params, counts, stream);
  });
}

}  // namespace penstock::cuda
