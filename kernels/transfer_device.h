#pragma once

#include <cstddef>

#include "base/status.h"

namespace penstock {

// What libraries that move bytes by way of a GPU, as NCCL and UCX do, need of one: memory that both
// they and the GPU reach, and streams that can be asked how far they are. A seam, so that whoever
// uses it needs no CUDA. Any thread, once it has Selected.
class TransferDevice {
 public:
  virtual ~TransferDevice() = default;
  virtual void Select() const = 0;  // for the calling thread, before anything else

  // Page-locked; nullptr where there is none left.
  virtual std::byte* AllocatePinned(size_t bytes) const = 0;
  virtual void FreePinned(std::byte* p) const = 0;
  // The device's own, that others read and write, too.
  virtual std::byte* AllocateForWires(size_t bytes) const = 0;
  virtual void FreeForWires(std::byte* p, size_t bytes) const = 0;

  // As cudaStream_t and cudaEvent_t; nullptr on failure.
  virtual void* CreateStream() const = 0;
  virtual void DestroyStream(void* stream) const = 0;
  virtual void* CreateEvent() const = 0;
  virtual void DestroyEvent(void* event) const = 0;
  virtual void RecordEvent(void* event, void* stream) const = 0;
  // Whether the stream has come to where the event was recorded; never waits. INTERNAL says what
  // the device reports instead.
  virtual absl::StatusOr<bool> Reached(void* event) const = 0;

  // These return when it is over. Memory of the host is page-locked.
  enum class Way { kToDevice, kToHost, kOnDevice };
  virtual absl::Status Copy(Way way, std::byte* to, const std::byte* from, size_t bytes,
                            void* stream) const = 0;
  // Until all is over that was enqueued on the device, on whatever stream and by whomever.
  virtual void Quiesce() const = 0;
};

}  // namespace penstock
