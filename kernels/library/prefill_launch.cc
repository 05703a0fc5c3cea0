#include <cuda_runtime.h>

#include "kernels/library/prefill.h"

namespace penstock::cuda::library {

template <int kDim, bool kWindow>
void RunPrefill(const PrefillCall& call, cudaStream_t stream);  // in prefill_*.cu

bool SupportsPrefill(const KvPlanes& kv) {
  const bool plain = kv.keys.code == KvCode::kBf16 && kv.values.code == KvCode::kBf16;
  // The kernel has one stride for keys and values.
  return plain && !kv.rotated_keys && kv.keys.head_stride == kv.values.head_stride &&
         (kv.head_dim == 64 || kv.head_dim == 128);
}

void LaunchPrefill(const PrefillCall& call, void* stream) {
  if (call.items == 0) return;
  const auto s = static_cast<cudaStream_t>(stream);
  const bool window = call.params.window > 0;
  if (call.params.kv.head_dim == 64) {
    return window ? RunPrefill<64, true>(call, s) : RunPrefill<64, false>(call, s);
  }
  return window ? RunPrefill<128, true>(call, s) : RunPrefill<128, false>(call, s);
}

}  // namespace penstock::cuda::library
