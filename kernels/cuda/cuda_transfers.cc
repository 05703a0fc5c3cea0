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
  absl::StatusOr<ExportedMemory> Export(const std::byte* data) const override {
    ExportedMemory exported;
    if (ExportForWires(data, &exported)) return exported;
    return Unavailable("the GPU does not export the memory to other processes ({})", TakeReason());
  }
  absl::StatusOr<std::byte*> Import(const ExportName& name, size_t bytes) const override {
    void* const imported = ImportForWires(name, bytes);
    if (imported != nullptr) return static_cast<std::byte*>(imported);
    return Unavailable("this GPU does not reach the other process's GPU memory ({})", TakeReason());
  }
  void Release(std::byte* imported, size_t bytes) const override {
    ReleaseImport(imported, bytes);
    TakeError();  // Nothing is left to do about memory that is not mapped any more.
  }
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
    const absl::Status started = StartCopy(way, to, from, bytes, stream);
    Synchronize(stream);
    RETURN_IF_ERROR(started);
    return TakeStatus("a transfer");
  }
  absl::Status StartCopy(Way way, std::byte* to, const std::byte* from, size_t bytes,
                         void* stream) const override {
    if (way == Way::kToDevice) CopyToDevice(to, from, bytes, stream);
    if (way == Way::kToHost) CopyToHost(to, from, bytes, stream);
    if (way == Way::kOnDevice) CopyOnDevice(to, from, bytes, stream);
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
