#include "kvstore/handoff/handoff_staging.h"

#include <sys/mman.h>

#include <algorithm>
#include <bit>
#include <iterator>
#include <new>
#include <utility>

#include "base/check.h"

namespace penstock {
namespace {

constexpr size_t kPage = 4096;
constexpr size_t kHugePage = size_t{2} << 20;

std::align_val_t AlignmentOf(size_t bytes) {
  return std::align_val_t(bytes < kHugePage ? kPage : kHugePage);
}

// Huge pages when possible: another process that reads the memory looks up every page, which takes
// a fifth of the copy's time with small pages.
std::byte* Allocate(size_t bytes) {
  auto* data = static_cast<std::byte*>(::operator new[](bytes, AlignmentOf(bytes)));
  if (bytes >= kHugePage) madvise(data, bytes, MADV_HUGEPAGE);  // advice; failure is ignored
  return data;
}

void Free(std::byte* data, size_t bytes) { ::operator delete[](data, AlignmentOf(bytes)); }

}  // namespace

StagingBuffer::StagingBuffer(StagingBuffer&& other) noexcept
    : staging_(std::exchange(other.staging_, nullptr)),
      data_(std::exchange(other.data_, nullptr)),
      size_(other.size_) {}

StagingBuffer& StagingBuffer::operator=(StagingBuffer&& other) noexcept {
  StagingBuffer moved(std::move(other));
  std::swap(staging_, moved.staging_);
  std::swap(data_, moved.data_);
  std::swap(size_, moved.size_);
  return *this;
}

StagingBuffer::~StagingBuffer() {
  if (data_ != nullptr) staging_->Release(data_, size_);
}

HandoffStaging::HandoffStaging(size_t budget_bytes) : budget_(budget_bytes) {}

HandoffStaging::~HandoffStaging() {
  MutexLock lock(mutex_);
  PENSTOCK_CHECK_EQ(used_, 0u);
  for (const Idle& idle : idle_) Free(idle.data, idle.size);
}

StagingBuffer HandoffStaging::Acquire(size_t bytes) {
  const size_t size = std::bit_ceil(std::max(bytes, kPage));
  MutexLock lock(mutex_);
  if (used_ > 0 && used_ + size > budget_) return {};
  used_ += size;
  const auto same = std::find_if(idle_.rbegin(), idle_.rend(),
                                 [&](const Idle& idle) { return idle.size == size; });
  if (same != idle_.rend()) {
    std::byte* data = same->data;
    idle_.erase(std::next(same).base());
    idle_bytes_ -= size;
    return StagingBuffer(this, data, size);
  }
  // Used and idle buffers together stay within the budget.
  if (used_ + idle_bytes_ > budget_) TrimIdle(used_ + idle_bytes_ - budget_);
  return StagingBuffer(this, Allocate(size), size);
}

size_t HandoffStaging::used() const {
  MutexLock lock(mutex_);
  return used_;
}

void HandoffStaging::Release(std::byte* data, size_t size) {
  MutexLock lock(mutex_);
  used_ -= size;
  idle_bytes_ += size;
  idle_.push_back({data, size});
  if (used_ + idle_bytes_ > budget_) TrimIdle(used_ + idle_bytes_ - budget_);
}

// Frees the least recently used buffers.
void HandoffStaging::TrimIdle(size_t bytes) {
  size_t freed = 0;
  auto last = idle_.begin();
  for (; last != idle_.end() && freed < bytes; ++last) {
    freed += last->size;
    Free(last->data, last->size);
  }
  idle_.erase(idle_.begin(), last);
  idle_bytes_ -= freed;
}

ArenaStaging::ArenaStaging(std::span<std::byte> arena) : arena_(arena) {
  MutexLock lock(mutex_);
  if (!arena_.empty()) free_[0] = arena_.size();
}

ArenaStaging::~ArenaStaging() {
  MutexLock lock(mutex_);
  PENSTOCK_CHECK_EQ(used_, 0u);
}

StagingBuffer ArenaStaging::Acquire(size_t bytes) {
  const size_t size = (std::max(bytes, kPage) + kPage - 1) / kPage * kPage;
  MutexLock lock(mutex_);
  const auto found = std::find_if(free_.begin(), free_.end(),
                                  [&](const auto& stretch) { return stretch.second >= size; });
  if (found == free_.end()) return {};
  const auto [at, room] = *found;
  free_.erase(found);
  if (room > size) free_[at + size] = room - size;
  used_ += size;
  return StagingBuffer(this, arena_.data() + at, size);
}

size_t ArenaStaging::used() const {
  MutexLock lock(mutex_);
  return used_;
}

void ArenaStaging::Release(std::byte* data, size_t size) {
  MutexLock lock(mutex_);
  used_ -= size;
  const auto at = static_cast<size_t>(data - arena_.data());
  auto next = free_.emplace(at, size).first;
  if (next != free_.begin() && std::prev(next)->first + std::prev(next)->second == at) {
    next = std::prev(next);
    next->second += size;
    free_.erase(std::next(next));
  }
  const auto after = std::next(next);
  if (after == free_.end() || next->first + next->second != after->first) return;
  next->second += after->second;
  free_.erase(after);
}

}  // namespace penstock
