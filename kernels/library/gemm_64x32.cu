#include "kernels/library/gemm_tile.cuh"

namespace penstock::cuda::library {

template void RunGemm<GemmTile::k64x32>(const GemmCall& call, void* stream);

}  // namespace penstock::cuda::library
