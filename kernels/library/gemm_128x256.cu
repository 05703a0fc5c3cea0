#include "kernels/library/gemm_tile.cuh"

namespace penstock::cuda::library {

template void RunGemm<GemmTile::k128x256>(const GemmCall& call, void* stream);

}  // namespace penstock::cuda::library
