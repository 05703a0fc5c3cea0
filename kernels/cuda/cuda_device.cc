#include "kernels/cuda/cuda_device.h"

#include <string>

#include "base/check.h"

namespace penstock::cuda {
namespace {

std::string Reason() {
  const char* error = TakeError();
  return error == nullptr ? "no reason given" : error;
}

}  // namespace

absl::Status NoRoom(size_t bytes, std::string_view kind, std::string_view what) {
  constexpr double kGib = size_t{1} << 30;
  return ResourceExhausted("{}: {:.2f} GiB of {} are not to be had ({}); use less of it", what,
                           static_cast<double>(bytes) / kGib, kind, Reason());
}

absl::Status TakeStatus(std::string_view context) {
  const char* error = TakeError();
  if (error == nullptr) return absl::OkStatus();
  return Internal("{}: CUDA says: {}", context, error);
}

absl::StatusOr<std::unique_ptr<CudaDevice>> CudaDevice::Open(int index) {
  DeviceInfo info;
  if (!OpenDevice(index, &info)) {
    const std::string error = Reason();
    if (info.count > 0) {
      return FailedPrecondition("device cuda:{}: this machine has {} GPUs, numbered from 0 ({})",
                                index, info.count, error);
    }
    return FailedPrecondition(
        "device cuda:{}: no GPU is to be had ({}); nvidia-smi tells whether there is one and a "
        "driver for CUDA 13, --device=cpu does without",
        index, error);
  }
  if (info.compute_major < 8) {
    return FailedPrecondition(
        "device cuda:{}: {} has compute capability {}.{}, the kernels need 8.0 (A100) or newer; "
        "--device=cpu does without",
        index, info.name, info.compute_major, info.compute_minor);
  }
  void* stream = CreateStream(/*high_priority=*/true);
  if (stream == nullptr) {
    RETURN_IF_ERROR(TakeStatus("creating a stream"));
    return Internal("device cuda:{}: no stream, and no reason given", index);
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
