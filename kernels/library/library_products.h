#pragma once

#include <memory>

#include "kernels/cuda/cuda_device.h"
#include "kernels/cuda/products.h"

namespace penstock::cuda {

// CUTLASS's products for the GPU that `info` describes. FAILED_PRECONDITION says that this build or
// this GPU has none. A seam: library_products.cc implements it, and library_none.cc replaces it in
// builds without the libraries.
absl::StatusOr<std::unique_ptr<Products>> MakeLibraryProducts(const DeviceInfo& info);

// Compares the products with the host's. FAILED_PRECONDITION says which are wrong. Requires
// products of MakeLibraryProducts.
absl::Status CheckLibraryProducts(const CudaDevice& device);

}  // namespace penstock::cuda
