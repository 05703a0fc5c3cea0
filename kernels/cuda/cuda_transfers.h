#pragma once

#include <memory>

#include "kernels/cuda/cuda_device.h"
#include "kernels/transfer_device.h"

namespace penstock::cuda {

// Returns the TransferDevice of `device`'s GPU. Shared ownership, because a thread that a transfer
// library never returns keeps using it. It stays valid after `device` is destroyed.
std::shared_ptr<const TransferDevice> MakeTransferDevice(const CudaDevice& device);

}  // namespace penstock::cuda
