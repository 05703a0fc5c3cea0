#pragma once

#include <cstddef>
#include <span>
#include <utility>

namespace penstock {

// Owns zeroed, page-aligned host memory. A buffer of at least one huge page asks the kernel for
// huge pages, because weights and packed activations are read sequentially. Aborts the process when
// the machine has no memory left. Movable, not thread-safe.
class Buffer {
 public:
  Buffer() = default;
  explicit Buffer(size_t bytes);
  ~Buffer();
  Buffer(Buffer&& other) noexcept { *this = std::move(other); }
  Buffer& operator=(Buffer&& other) noexcept {
    std::swap(data_, other.data_);
    std::swap(bytes_, other.bytes_);
    return *this;
  }
  Buffer(const Buffer&) = delete;
  Buffer& operator=(const Buffer&) = delete;

  size_t bytes() const { return bytes_; }
  template <class T>
  T* as() const {
    return static_cast<T*>(data_);
  }

 private:
  void* data_ = nullptr;
  size_t bytes_ = 0;
};

}  // namespace penstock
