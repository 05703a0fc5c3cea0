#include "kernels/library/gemm.h"

namespace penstock::cuda::library {

template <GemmTile kTile>
void RunGemm(const GemmCall& call, void* stream);  // in gemm_*.cu

void LaunchGemm(GemmTile tile, const GemmCall& call, void* stream) {
  using enum GemmTile;
  switch (tile) {
    case k64x16:
      return RunGemm<k64x16>(call, stream);
    case k64x64:
      return RunGemm<k64x64>(call, stream);
    case k128x64:
      return RunGemm<k128x64>(call, stream);
    case k128x128:
      return RunGemm<k128x128>(call, stream);
    case k128x256:
      return RunGemm<k128x256>(call, stream);
  }
}

}  // namespace penstock::cuda::library
