#include "kernels/cuda/cuda_device.h"

#include <string>

#include "base/check.h"

namespace penstock::cuda {

std::string TakeReason() {
  const char* error = TakeError();
  return error == nullptr ? "no reason given" : error;
}

absl::Status OutOfMemory(size_t bytes, std::string_view kind, std::string_view what) {
  constexpr double kGib = size_t{1} << 30;
  return ResourceExhausted(
      "{}: cannot allocate {:.2f} GiB of {} ({}); reduce its use of that memory", what,
      static_cast<double>(bytes) / kGib, kind, TakeReason());
}

absl::Status TakeStatus(std::string_view context) {
  const char* error = TakeError();
  if (error == nullptr) return absl::OkStatus();
  return Internal("{}: CUDA error: {}", context, error);
}

absl::StatusOr<std::unique_ptr<CudaDevice>> CudaDevice::Open(int index) {
  DeviceInfo info;
  if (!OpenDevice(index, &info)) {
    const std::string error = TakeReason();
    if (info.count > 0) {
      return FailedPrecondition("device cuda:{}: this machine has {} GPUs, numbered from 0 ({})",
                                index, info.count, error);
    }
    return FailedPrecondition(
        "device cuda:{}: no usable GPU ({}); check GPU and CUDA 13 driver with nvidia-smi, or use "
        "--device=cpu",
        index, error);
  }
  if (info.compute_major < 8) {
    return FailedPrecondition(
        "device cuda:{}: {} has compute capability {}.{}, the kernels need 8.0 (A100) or newer; "
        "use --device=cpu instead",
        index, info.name, info.compute_major, info.compute_minor);
  }
  void* stream = CreateStream(/*high_priority=*/true);
  if (stream == nullptr) {
    RETURN_IF_ERROR(TakeStatus("creating a stream"));
    return Internal("device cuda:{}: cannot create a stream; CUDA gave no reason", index);
  }
  return std::unique_ptr<CudaDevice>(new CudaDevice(index, info, stream));
}

DeviceInfo CudaDevice::Look() const {
  DeviceInfo info;
  PENSTOCK_CHECK(OpenDevice(index_, &info), "a GPU that was there is not");
  return info;
}

CudaDevice::~CudaDevice() {
  Synchronize(stream_);
  DestroyStream(stream_);
}

}  // namespace penstock::cuda
