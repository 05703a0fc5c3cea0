#include "kernels/library/gemm_tile.cuh"

namespace penstock::cuda::library {

template void RunGemm<GemmTile::k128x128PingPong>(const GemmCall& call, void* stream);

}  // namespace penstock::cuda::library
