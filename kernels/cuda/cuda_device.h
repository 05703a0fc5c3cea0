#pragma once

#include <cstddef>
#include <memory>
#include <string_view>
#include <utility>

#include "base/status.h"
#include "kernels/cuda/runtime.h"

namespace penstock::cuda {

// Returns OK, or INTERNAL with CUDA's error text and `context` if any call of this thread has
// failed since the last TakeStatus.
absl::Status TakeStatus(std::string_view context);
// The same as text, for a call that has failed.
std::string TakeReason();

// RESOURCE_EXHAUSTED: names `what` and says that `bytes` of `kind` cannot be allocated.
absl::Status OutOfMemory(size_t bytes, std::string_view kind, std::string_view what);

// Owns memory of a kind (below). Movable. The owner destroys it only when no work on the device
// uses it.
template <class Kind>
class CudaMemory {
 public:
  CudaMemory() = default;
  CudaMemory(CudaMemory&& other) noexcept { *this = std::move(other); }
  CudaMemory& operator=(CudaMemory&& other) noexcept {
    std::swap(data_, other.data_);
    std::swap(bytes_, other.bytes_);
    return *this;
  }
  CudaMemory(const CudaMemory&) = delete;
  CudaMemory& operator=(const CudaMemory&) = delete;
  ~CudaMemory() { Kind::Free(data_); }

  // Returns RESOURCE_EXHAUSTED that names `what` and the size if there is no room.
  static absl::StatusOr<CudaMemory> Create(size_t bytes, std::string_view what) {
    CudaMemory memory;
    memory.data_ = Kind::Allocate(bytes);
    if (memory.data_ == nullptr) return OutOfMemory(bytes, Kind::kName, what);
    memory.bytes_ = bytes;
    return memory;
  }

  size_t bytes() const { return bytes_; }
  template <class T>
  T* as() const {
    return static_cast<T*>(data_);
  }

 private:
  void* data_ = nullptr;
  size_t bytes_ = 0;
};

struct DeviceMemory {
  static constexpr std::string_view kName = "device memory";
  static void* Allocate(size_t bytes) { return AllocateDevice(bytes); }
  static void Free(void* data) { FreeDevice(data); }  // waits until the device no longer uses it
};
using DeviceBuffer = CudaMemory<DeviceMemory>;

// Page-locked host memory, which copies beside the host's own work require.
struct PinnedMemory {
  static constexpr std::string_view kName = "page-locked memory";
  static void* Allocate(size_t bytes) { return AllocatePinned(bytes); }
  static void Free(void* data) { FreePinned(data); }
};
using PinnedBuffer = CudaMemory<PinnedMemory>;

// Owns the use of one GPU by this process, and the stream that compute runs on. One thread at a
// time uses it; every thread calls Select first.
class CudaDevice {
 public:
  // Returns FAILED_PRECONDITION if the GPU cannot be used (no driver, no such GPU, unsupported
  // architecture); the message names the next step.
  static absl::StatusOr<std::unique_ptr<CudaDevice>> Open(int index);
  ~CudaDevice();

  // Makes the GPU current for the calling thread, which must call it before it enqueues or
  // allocates: a new thread starts with GPU 0.
  void Select() const { SelectDevice(index_); }
  int index() const { return index_; }
  void* stream() const { return stream_; }
  const DeviceInfo& info() const { return info_; }
  DeviceInfo Look() const;  // the present state, e.g. free memory

 private:
  CudaDevice(int index, const DeviceInfo& info, void* stream)
      : index_(index), info_(info), stream_(stream) {}
  const int index_;
  const DeviceInfo info_;
  void* const stream_;
};

}  // namespace penstock::cuda
