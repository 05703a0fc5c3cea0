#pragma once

#include <cstddef>
#include <memory>
#include <vector>

#include "base/mutex.h"

namespace penstock {

class HandoffStaging;

// One buffer, given back when it goes. Move-only; must not outlive its staging. Any thread.
class StagingBuffer {
 public:
  StagingBuffer() = default;
  StagingBuffer(StagingBuffer&& other) noexcept;
  StagingBuffer& operator=(StagingBuffer&& other) noexcept;
  ~StagingBuffer();

  std::byte* data() const { return data_; }
  explicit operator bool() const { return data_ != nullptr; }

 private:
  friend class HandoffStaging;
  StagingBuffer(HandoffStaging* staging, std::byte* data, size_t size)
      : staging_(staging), data_(data), size_(size) {}
  HandoffStaging* staging_ = nullptr;
  std::byte* data_ = nullptr;
  size_t size_ = 0;  // bytes that count against the budget: a power of two
};

// A bounded pool of page-aligned buffers between pages and wire. Sizes are rounded up to powers of
// two and kept for reuse. Any thread.
class HandoffStaging {
 public:
  explicit HandoffStaging(size_t budget_bytes);
  ~HandoffStaging();  // CHECKs that every buffer is back.

  // Empty when the budget does not allow it now; a single buffer is always allowed.
  StagingBuffer Acquire(size_t bytes) EXCLUDES(mutex_);
  size_t used() const EXCLUDES(mutex_);  // bytes

 private:
  friend class StagingBuffer;
  struct Idle {
    std::byte* data;
    size_t size;
  };
  void Release(std::byte* data, size_t size) EXCLUDES(mutex_);
  void TrimIdle(size_t bytes) REQUIRES(mutex_);

  const size_t budget_;
  mutable Mutex mutex_;
  size_t used_ GUARDED_BY(mutex_) = 0;
  size_t idle_bytes_ GUARDED_BY(mutex_) = 0;
  std::vector<Idle> idle_ GUARDED_BY(mutex_);
};

}  // namespace penstock
