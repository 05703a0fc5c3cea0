#include "kernels/library/gemm_tile.cuh"

namespace penstock::cuda::library {

template void RunGemm<GemmTile::k256x128Pair>(const GemmCall& call, void* stream);

}  // namespace penstock::cuda::library
