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
  std::byte* AllocateForWires(size_t bytes) const override {
    return static_cast<std::byte*>(cuda::AllocateForWires(bytes));
  }
  void FreeForWires(std::byte* p, size_t bytes) const override { cuda::FreeForWires(p, bytes); }
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
  absl::Status Copy(Way way, std::byte* to, const std::byte* from, size_t bytes,
                    void* stream) const override {
    if (way == Way::kToDevice) CopyToDevice(to, from, bytes, stream);
    if (way == Way::kToHost) CopyToHost(to, from, bytes, stream);
    if (way == Way::kOnDevice) CopyOnDevice(to, from, bytes, stream);
    Synchronize(stream);
    return TakeStatus("a transfer");
  }
  void Quiesce() const override { SynchronizeDevice(); }

 private:
  const int device_;
};

}  // namespace

std::shared_ptr<const TransferDevice> MakeTransferDevice(const CudaDevice& device) {
  return std::make_shared<CudaTransfers>(device.index());
}

}  // namespace penstock::cuda
