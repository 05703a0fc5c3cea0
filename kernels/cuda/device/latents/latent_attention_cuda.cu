#include "kernels/cuda/device/latents/latent_attention.cuh"
#include "kernels/cuda/latents/latents.h"

namespace penstock::cuda {
namespace {

LaunchShape GridOf(int blocks) {
  return {.x = blocks, .threads = LatentShape::kThreads, .shared_bytes = LatentShape::kSharedBytes};
}

}  // namespace

bool SupportsLatents(const KvPlanes& kv) {
  return kv.page_log2 >= 4 && kv.page_log2 <= 10 && kv.kv_heads == 1 && kv.head_dim == kLatentRow &&
         kv.keys.code == KvCode::kBf16;
}

void LatentAttention(const LatentAttentionParams& params, const AttentionCounts& counts,
                     void* stream) {
  if (counts.wide > 0) Launch(&LatentTilesKernel, GridOf(counts.wide), params, stream);
  if (counts.narrow == 0) return;
  Launch(&LatentSplitsKernel, GridOf(counts.items), params, stream);
  const AttentionParams& attention = params.attention;
  if (!HasSplits(attention)) return;
  const LaunchShape merge{.x = counts.narrow,
                          .z = kNarrowRows,
                          .threads = kMergeThreads<kLatentRank, /*kRotated=*/false>};
  Launch(&MergeSplitsKernel<kLatentRank, /*kPlain=*/true, /*kRotated=*/false>, merge, attention,
         stream);
}

}  // namespace penstock::cuda
