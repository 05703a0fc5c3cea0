#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <span>
#include <vector>

#include "base/mutex.h"

namespace penstock {

// The pool to which a buffer returns.
class StagingOwner {
 public:
  virtual void Release(std::byte* data, size_t size) = 0;

 protected:
  ~StagingOwner() = default;
};

// One buffer, returned to its pool on destruction. Move-only; must not outlive its pool. Any
// thread.
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
  friend class ArenaStaging;
  StagingBuffer(StagingOwner* staging, std::byte* data, size_t size)
      : staging_(staging), data_(data), size_(size) {}
  StagingOwner* staging_ = nullptr;
  std::byte* data_ = nullptr;
  size_t size_ = 0;  // bytes that count against the budget
};

// A bounded pool of page-aligned host buffers between pages and wire. Sizes are rounded up to
// powers of two and kept for reuse, while they are reused. Any thread.
class HandoffStaging final : public StagingOwner {
 public:
  explicit HandoffStaging(size_t budget_bytes);
  ~HandoffStaging();  // CHECKs that every buffer was returned

  // Empty when the budget is used up now. A single buffer is always allowed.
  StagingBuffer Acquire(size_t bytes) EXCLUDES(mutex_);
  size_t used() const EXCLUDES(mutex_);  // bytes
  size_t idle() const EXCLUDES(mutex_);  // bytes that are kept for reuse

 private:
  struct Idle {
    std::byte* data;
    size_t size;
    uint64_t since;  // `acquired_` when it was returned
  };
  void Release(std::byte* data, size_t size) override EXCLUDES(mutex_);
  // Frees the least recently used buffers: those beyond the budget, and those that nobody needs.
  void TrimIdle() REQUIRES(mutex_);

  const size_t budget_;
  mutable Mutex mutex_;
  size_t used_ GUARDED_BY(mutex_) = 0;
  size_t idle_bytes_ GUARDED_BY(mutex_) = 0;
  uint64_t acquired_ GUARDED_BY(mutex_) = 0;   // buffers, since the start
  std::vector<Idle> idle_ GUARDED_BY(mutex_);  // the least recently used first
};

// Allocates pieces of a memory range owned by the caller, such as a GPU's; the range is never
// accessed here. A mirror is another range of the same size, such as page-locked host memory: who
// has a piece of one has the same piece of the other. Pieces are aligned to 4,096 bytes if the
// ranges are. Any thread.
class ArenaStaging final : public StagingOwner {
 public:
  // `mirror` null: there is none.
  explicit ArenaStaging(std::span<std::byte> arena, std::byte* mirror = nullptr);
  ~ArenaStaging();  // CHECKs that every buffer was returned

  // Empty when there is no contiguous free piece of `bytes` bytes now.
  StagingBuffer Acquire(size_t bytes) EXCLUDES(mutex_) { return AcquireIn(arena_.data(), bytes); }
  // The same, but the buffer is in the mirror.
  StagingBuffer AcquireMirrored(size_t bytes) EXCLUDES(mutex_) { return AcquireIn(mirror_, bytes); }
  // The piece of one that belongs to a piece of the other.
  std::byte* MirrorToArena(std::byte* piece) const { return arena_.data() + (piece - mirror_); }
  std::byte* ArenaToMirror(std::byte* piece) const { return mirror_ + (piece - arena_.data()); }
  size_t used() const EXCLUDES(mutex_);  // bytes, in either
  size_t size() const { return arena_.size(); }

 private:
  StagingBuffer AcquireIn(std::byte* base, size_t bytes) EXCLUDES(mutex_);
  bool IsMirrored(const std::byte* data) const;
  void Release(std::byte* data, size_t size) override EXCLUDES(mutex_);

  const std::span<std::byte> arena_;
  std::byte* const mirror_;
  mutable Mutex mutex_;
  size_t used_ GUARDED_BY(mutex_) = 0;
  std::map<size_t, size_t> free_ GUARDED_BY(mutex_);  // sizes by offset; never adjacent
};

}  // namespace penstock
