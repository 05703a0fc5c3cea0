#pragma once

#include <memory>

#include "kernels/cuda/cuda_device.h"
#include "kernels/transfer_device.h"

namespace penstock::cuda {

// Shared, because a thread that a library does not give back keeps it: it does not need `device`.
std::shared_ptr<const TransferDevice> MakeTransferDevice(const CudaDevice& device);

}  // namespace penstock::cuda
