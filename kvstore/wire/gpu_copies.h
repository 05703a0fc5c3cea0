#pragma once

#include <memory>
#include <vector>

#include "kernels/transfer_device.h"

namespace penstock {

// The copies that a wire makes on its GPU, on a stream of their own. One thread, which has selected
// the GPU, starts them and polls. Copies must have ended before it is destroyed.
class GpuCopies {
 public:
  // RESOURCE_EXHAUSTED when the device has no stream left.
  static absl::StatusOr<std::unique_ptr<GpuCopies>> Create(
      std::shared_ptr<const TransferDevice> gpu);
  ~GpuCopies();
  GpuCopies(const GpuCopies&) = delete;
  GpuCopies& operator=(const GpuCopies&) = delete;

  // A copy that was started. Exactly one call of Forget for each.
  using Copy = void*;

  // Starts a copy within GPU memory, from this GPU or from an import.
  absl::StatusOr<Copy> Start(std::byte* to, const std::byte* from, size_t bytes) {
    return Start(TransferDevice::Way::kOnDevice, to, from, bytes);
  }
  // Starts a copy to page-locked host memory.
  absl::StatusOr<Copy> StartToHost(std::byte* to, const std::byte* from, size_t bytes) {
    return Start(TransferDevice::Way::kToHost, to, from, bytes);
  }
  // True when it is complete. Never waits.
  absl::StatusOr<bool> Ended(Copy copy) const { return gpu_->Reached(copy); }
  // Waits for it.
  void Await(Copy copy) const;
  void Forget(Copy copy) { idle_.push_back(copy); }

  // Copies to host memory and waits for that.
  absl::Status ToHost(std::byte* to, const std::byte* from, size_t bytes) const {
    return gpu_->Copy(TransferDevice::Way::kToHost, to, from, bytes, stream_);
  }

  const std::shared_ptr<const TransferDevice>& gpu() const { return gpu_; }

 private:
  explicit GpuCopies(std::shared_ptr<const TransferDevice> gpu) : gpu_(std::move(gpu)) {}
  absl::StatusOr<Copy> Start(TransferDevice::Way way, std::byte* to, const std::byte* from,
                             size_t bytes);

  const std::shared_ptr<const TransferDevice> gpu_;
  void* stream_ = nullptr;
  std::vector<void*> idle_;  // events
};

}  // namespace penstock
