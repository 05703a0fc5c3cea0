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

// Device memory with an owner. Freed when the device is done with it.
class DeviceBuffer {
 public:
  DeviceBuffer() = default;
  DeviceBuffer(DeviceBuffer&& other) noexcept { *this = std::move(other); }
  DeviceBuffer& operator=(DeviceBuffer&& other) noexcept {
    std::swap(data_, other.data_);
    std::swap(bytes_, other.bytes_);
    return *this;
  }
  DeviceBuffer(const DeviceBuffer&) = delete;
  DeviceBuffer& operator=(const DeviceBuffer&) = delete;
  ~DeviceBuffer() { FreeDevice(data_); }

  // RESOURCE_EXHAUSTED says for what, and how much.
  static absl::StatusOr<DeviceBuffer> Create(size_t bytes, std::string_view what);

  size_t bytes() const { return bytes_; }
  template <class T>
  T* as() const {
    return static_cast<T*>(data_);
  }

 private:
  void* data_ = nullptr;
  size_t bytes_ = 0;
};

// Page-locked memory of the host with an owner: what copies beside the host's own work need.
class PinnedBuffer {
 public:
  PinnedBuffer() = default;
  PinnedBuffer(PinnedBuffer&& other) noexcept { *this = std::move(other); }
  PinnedBuffer& operator=(PinnedBuffer&& other) noexcept {
    std::swap(data_, other.data_);
    std::swap(bytes_, other.bytes_);
    return *this;
  }
  PinnedBuffer(const PinnedBuffer&) = delete;
  PinnedBuffer& operator=(const PinnedBuffer&) = delete;
  ~PinnedBuffer() { FreePinned(data_); }

  // RESOURCE_EXHAUSTED says for what, and how much.
  static absl::StatusOr<PinnedBuffer> Create(size_t bytes, std::string_view what);

  size_t bytes() const { return bytes_; }
  template <class T>
  T* as() const {
    return static_cast<T*>(data_);
  }

 private:
  void* data_ = nullptr;
  size_t bytes_ = 0;
};

// A GPU that this process uses, and the stream that its compute runs on. One thread at a time.
class CudaDevice {
 public:
  // FAILED_PRECONDITION says what is wrong (no driver, no such GPU, too old an architecture) and
  // what to do about it.
  static absl::StatusOr<std::unique_ptr<CudaDevice>> Open(int index);
  ~CudaDevice();

  // For the calling thread, before it enqueues or allocates: threads start with GPU 0.
  void Select() const { SelectDevice(index_); }
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
