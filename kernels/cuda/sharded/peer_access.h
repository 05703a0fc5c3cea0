#pragma once

#include "kernels/cuda/cuda_device.h"

namespace penstock::cuda {

// Lets `device`'s kernels access memory of `owner`, and tries it with known bytes, in both
// directions: some machines report peer access that loses or changes bytes. UNAVAILABLE says that
// the GPUs have no access, DATA_LOSS that bytes did not arrive. Waits for the GPUs, and leaves
// `owner` selected. Any thread.
absl::Status TryPeerAccess(const CudaDevice& device, const CudaDevice& owner);

}  // namespace penstock::cuda
