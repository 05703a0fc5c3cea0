#pragma once

#include <cstdio>
#include <cstdlib>
#include <vector>

#include "kernels/cuda/runtime.h"

namespace penstock::cuda {

// Ends the run: what follows would be about nothing.
inline void ExpectNoDeviceError(const char* where) {
  if (const char* error = TakeError(); error != nullptr) {
    std::fprintf(stderr, "%s: CUDA says: %s\n", where, error);
    std::exit(1);
  }
}

// An array of the device (emulated or real) made from and read back to host vectors.
template <class T>
class DeviceArray {
 public:
  explicit DeviceArray(size_t size) : size_(size) {
    data_ = static_cast<T*>(AllocateDevice(size * sizeof(T)));
    ExpectNoDeviceError("AllocateDevice");
    FillDevice(data_, 0xff, size * sizeof(T), nullptr);
  }
  explicit DeviceArray(const std::vector<T>& values) : DeviceArray(values.size()) {
    CopyToDevice(data_, values.data(), size_ * sizeof(T), nullptr);
    Synchronize(nullptr);
  }
  ~DeviceArray() { FreeDevice(data_); }
  DeviceArray(const DeviceArray&) = delete;
  DeviceArray& operator=(const DeviceArray&) = delete;

  T* data() const { return data_; }
  size_t size() const { return size_; }
  std::vector<T> Read() const {
    std::vector<T> values(size_);
    CopyToHost(values.data(), data_, size_ * sizeof(T), nullptr);
    Synchronize(nullptr);
    ExpectNoDeviceError("Read");
    return values;
  }

 private:
  T* data_ = nullptr;
  size_t size_ = 0;
};

}  // namespace penstock::cuda
