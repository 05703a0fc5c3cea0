#include "kernels/library/prefill_kernel.cuh"

namespace penstock::cuda::library {

template void RunPrefill<64, true>(const PrefillCall& call, void* stream);

}  // namespace penstock::cuda::library
