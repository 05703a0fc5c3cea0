#include "kernels/library/library_products.h"

namespace penstock::cuda {

absl::StatusOr<std::unique_ptr<Products>> MakeLibraryProducts(const DeviceInfo&) {
  return FailedPrecondition(
      "gpu_kernels is library, and this build has no library kernels: run scripts/setup "
      "--gpu-headers before cmake --preset cuda, or use --gpu_kernels=own");
}

absl::Status CheckLibraryProducts(const CudaDevice& device) {
  return MakeLibraryProducts(device.info()).status();
}

}  // namespace penstock::cuda
