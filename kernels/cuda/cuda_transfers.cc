#include "kernels/cuda/cuda_transfers.h"

namespace penstock::cuda {
namespace {

class CudaTransfers final : public TransferDevice {
 public:
  explicit CudaTransfers(int device) : device_(device) {}

  void Select() const override { SelectDevice(device_); }
  std::byte* AllocatePinned(size_t bytes) const override {
    return static_cast<std::byte*>(cuda::AllocatePinned(bytes));
  }
  void FreePinned(std::byte* p) const override { cuda::FreePinned(p); }
  void* CreateStream() const override { return cuda::CreateStream(/*high_priority=*/true); }
  void DestroyStream(void* stream) const override { cuda::DestroyStream(stream); }
  void* CreateEvent() const override { return cuda::CreateEvent(); }
  void DestroyEvent(void* event) const override { cuda::DestroyEvent(event); }
  void RecordEvent(void* event, void* stream) const override { cuda::RecordEvent(event, stream); }
  absl::StatusOr<bool> Reached(void* event) const override {
    const bool reached = EventReached(event);
    RETURN_IF_ERROR(TakeStatus("a transfer"));
    return reached;
  }

 private:
  const int device_;
};

}  // namespace

std::shared_ptr<const TransferDevice> MakeTransferDevice(const CudaDevice& device) {
  return std::make_shared<CudaTransfers>(device.index());
}

}  // namespace penstock::cuda
