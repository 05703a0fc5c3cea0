#pragma once

#include <cstddef>
#include <span>
#include <utility>

namespace penstock {

// Owns zeroed, page-aligned host memory, or refers to a part of another buffer. A buffer of at
// least one huge page asks the kernel for huge pages, because weights and packed activations are
// read sequentially. Aborts the process when the machine has no memory left. Movable, not
// thread-safe.
class Buffer {
 public:
  Buffer() = default;
  explicit Buffer(size_t bytes);
  // A buffer that owns nothing: its memory, in whole pages, outlives it.
  static Buffer Over(std::span<std::byte> memory);
  ~Buffer();
  Buffer(Buffer&& other) noexcept { *this = std::move(other); }
  Buffer& operator=(Buffer&& other) noexcept {
    std::swap(data_, other.data_);
    std::swap(bytes_, other.bytes_);
    std::swap(owned_, other.owned_);
    return *this;
  }
  Buffer(const Buffer&) = delete;
  Buffer& operator=(const Buffer&) = delete;

  // The size of a buffer of `bytes` bytes: whole pages.
  static constexpr size_t InPages(size_t bytes) { return (bytes + 4095) / 4096 * 4096; }

  size_t bytes() const { return bytes_; }
  template <class T>
  T* as() const {
    return static_cast<T*>(data_);
  }

 private:
  void* data_ = nullptr;
  size_t bytes_ = 0;
  bool owned_ = false;
};

}  // namespace penstock
