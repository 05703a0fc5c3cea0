#pragma once

#include <cstddef>
#include <memory>
#include <string_view>
#include <utility>

#include "base/status.h"
#include "kernels/cuda/runtime.h"

namespace penstock::cuda {

// INTERNAL with CUDA's own words and `context`, or OK: of all that went wrong since the last call.
absl::Status TakeStatus(std::string_view context);

// RESOURCE_EXHAUSTED: `bytes` of `kind` for `what` are not to be had.
absl::Status NoRoom(size_t bytes, std::string_view kind, std::string_view what);

// Memory with an owner.
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

  // RESOURCE_EXHAUSTED says for what, and how much.
  static absl::StatusOr<CudaMemory> Create(size_t bytes, std::string_view what) {
    CudaMemory memory;
    memory.data_ = Kind::Allocate(bytes);
    if (memory.data_ == nullptr) return NoRoom(bytes, Kind::kName, what);
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
  static void Free(void* data) { FreeDevice(data); }  // when the device is done with it
};
using DeviceBuffer = CudaMemory<DeviceMemory>;

// Of the host: what copies beside the host's own work need.
struct PinnedMemory {
  static constexpr std::string_view kName = "page-locked memory";
  static void* Allocate(size_t bytes) { return AllocatePinned(bytes); }
  static void Free(void* data) { FreePinned(data); }
};
using PinnedBuffer = CudaMemory<PinnedMemory>;

// A GPU that this process uses, and the stream that its compute runs on. One thread at a time.
class CudaDevice {
 public:
  // FAILED_PRECONDITION says what is wrong (no driver, no such GPU, too old an architecture) and
  // what to do about it.
  static absl::StatusOr<std::unique_ptr<CudaDevice>> Open(int index);
  ~CudaDevice();

  // For the calling thread, before it enqueues or allocates: threads start with GPU 0.
  void Select() const { SelectDevice(index_); }
  int index() const { return index_; }
  void* stream() const { return stream_; }
  const DeviceInfo& info() const { return info_; }
  DeviceInfo Look() const;  // as it is now: how much memory is free

 private:
  CudaDevice(int index, const DeviceInfo& info, void* stream)
      : index_(index), info_(info), stream_(stream) {}
  const int index_;
  const DeviceInfo info_;
  void* const stream_;
};

}  // namespace penstock::cuda
