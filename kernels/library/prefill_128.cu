#include "kernels/library/prefill_kernel.cuh"

namespace penstock::cuda::library {

template void RunPrefill<128, false>(const PrefillCall& call, void* stream);

}  // namespace penstock::cuda::library
