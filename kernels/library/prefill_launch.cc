#include "kernels/library/prefill.h"

namespace penstock::cuda::library {

template <int kDim, bool kWindow>
void RunPrefill(const PrefillCall& call, void* stream);  // in prefill_*.cu

bool HasPrefill() { return true; }

void LaunchPrefill(const PrefillCall& call, void* stream) {
  if (call.items == 0) return;
  const bool window = call.shape.window > 0;
  if (call.shape.head_dim == 64) {
    return window ? RunPrefill<64, true>(call, stream) : RunPrefill<64, false>(call, stream);
  }
  return window ? RunPrefill<128, true>(call, stream) : RunPrefill<128, false>(call, stream);
}

}  // namespace penstock::cuda::library
