#pragma once

#include <cstddef>

#include "base/status.h"
#include "kernels/exported_memory.h"

namespace penstock {

// The GPU memory and streams that a transfer library (NCCL, UCX) needs: memory that the library and
// the GPU can both access, and events that can be polled. An interface, so that the wires need no
// CUDA headers. Any thread may call it after it has called Select.
class TransferDevice {
 public:
  virtual ~TransferDevice() = default;
  virtual void Select() const = 0;  // makes the GPU current for the calling thread

  // Allocates page-locked host memory; nullptr if there is none left.
  virtual std::byte* AllocatePinned(size_t bytes) const = 0;
  virtual void FreePinned(std::byte* p) const = 0;
  // Allocates device memory that network cards and other GPUs may also access; nullptr if there is
  // none left.
  virtual std::byte* AllocateForWires(size_t bytes) const = 0;
  virtual void FreeForWires(std::byte* p, size_t bytes) const = 0;
  // Exports the allocation of AllocateForWires, of this object or of DeviceSlabs, that has `data`.
  // UNAVAILABLE if the device cannot export it.
  virtual absl::StatusOr<ExportedMemory> Export(const std::byte* data) const = 0;
  // Maps memory that another process of this host exported, until Release. UNAVAILABLE if this
  // device cannot reach it. Both may wait for the device.
  virtual absl::StatusOr<std::byte*> Import(const ExportName& name, size_t bytes) const = 0;
  virtual void Release(std::byte* imported, size_t bytes) const = 0;

  // CreateStream returns a cudaStream_t and CreateEvent a cudaEvent_t; nullptr on failure.
  virtual void* CreateStream() const = 0;
  virtual void DestroyStream(void* stream) const = 0;
  virtual void* CreateEvent() const = 0;
  virtual void DestroyEvent(void* event) const = 0;
  virtual void RecordEvent(void* event, void* stream) const = 0;
  // True if the stream has passed the point where the event was recorded. Never waits. Returns
  // INTERNAL with the device's own message if the device reports an error.
  virtual absl::StatusOr<bool> Reached(void* event) const = 0;

  // The direction of a copy. Copy blocks until it is complete; it is fast with page-locked host
  // memory only. kOnDevice also copies from imported memory.
  enum class Way { kToDevice, kToHost, kOnDevice };
  virtual absl::Status Copy(Way way, std::byte* to, const std::byte* from, size_t bytes,
                            void* stream) const = 0;
  // As Copy, but returns when the copy is enqueued; host memory must be page-locked.
  virtual absl::Status StartCopy(Way way, std::byte* to, const std::byte* from, size_t bytes,
                                 void* stream) const = 0;
  // Blocks until all work that any thread enqueued on any stream of the device is complete.
  virtual void Quiesce() const = 0;
};

}  // namespace penstock
