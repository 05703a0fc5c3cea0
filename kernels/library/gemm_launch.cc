#include <cuda_runtime.h>

#include "kernels/library/gemm.h"

namespace penstock::cuda::library {

template <GemmTile kTile>
void RunGemm(const GemmCall& call, cudaStream_t stream);  // in gemm_*.cu

void LaunchGemm(GemmTile tile, const GemmCall& call, void* stream) {
  using enum GemmTile;
  const auto s = static_cast<cudaStream_t>(stream);
  switch (tile) {
    case k64x16: return RunGemm<k64x16>(call, s);
    case k128x16: return RunGemm<k128x16>(call, s);
    case k64x64: return RunGemm<k64x64>(call, s);
    case k128x64: return RunGemm<k128x64>(call, s);
    case k128x128: return RunGemm<k128x128>(call, s);
    case k128x128PingPong: return RunGemm<k128x128PingPong>(call, s);
    case k128x256: return RunGemm<k128x256>(call, s);
    case k128x256Pair: return RunGemm<k128x256Pair>(call, s);
    case k256x128Pair: return RunGemm<k256x128Pair>(call, s);
  }
}

}  // namespace penstock::cuda::library
