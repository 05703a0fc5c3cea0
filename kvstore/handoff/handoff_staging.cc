#include "kvstore/handoff/handoff_staging.h"

#include <sys/mman.h>

#include <algorithm>
#include <bit>
#include <cstdint>
#include <iterator>
#include <utility>

#include "base/check.h"

namespace penstock {
namespace {

constexpr size_t kPage = 4096;
constexpr size_t kHugePage = size_t{2} << 20;
// Idle buffers that so many acquisitions did not need are freed: one burst does not decide how much
// memory a process has from then on.
constexpr uint64_t kKeptFor = 256;

std::byte* Map(size_t bytes) {
  void* data = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  PENSTOCK_CHECK(data != MAP_FAILED, "(no memory for a staging buffer)");
  return static_cast<std::byte*>(data);
}

void Free(std::byte* data, size_t bytes) {
  if (bytes > 0) munmap(data, bytes);
}

// Huge pages when possible: another process that reads the memory looks up every page, which takes
// a fifth of the copy's time with small pages. Mapped, not from the heap: malloc would keep the
// buffers' holes, and aligned ones leave many.
std::byte* Allocate(size_t bytes) {
  if (bytes < kHugePage) return Map(bytes);
  std::byte* all = Map(bytes + kHugePage);
  const size_t before = (kHugePage - reinterpret_cast<uintptr_t>(all) % kHugePage) % kHugePage;
  Free(all, before);
  std::byte* data = all + before;
  Free(data + bytes, kHugePage - before);
  madvise(data, bytes, MADV_HUGEPAGE);  // advice; failure is ignored
  return data;
}

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
  ++acquired_;
  const auto same = std::find_if(idle_.rbegin(), idle_.rend(),
                                 [&](const Idle& idle) { return idle.size == size; });
  if (same != idle_.rend()) {
    std::byte* data = same->data;
    idle_.erase(std::next(same).base());
    idle_bytes_ -= size;
    return StagingBuffer(this, data, size);
  }
  TrimIdle();
  return StagingBuffer(this, Allocate(size), size);
}

size_t HandoffStaging::used() const {
  MutexLock lock(mutex_);
  return used_;
}

size_t HandoffStaging::idle() const {
  MutexLock lock(mutex_);
  return idle_bytes_;
}

void HandoffStaging::Release(std::byte* data, size_t size) {
  MutexLock lock(mutex_);
  used_ -= size;
  idle_bytes_ += size;
  idle_.push_back({data, size, acquired_});
  TrimIdle();
}

void HandoffStaging::TrimIdle() {
  auto last = idle_.begin();
  for (; last != idle_.end(); ++last) {
    // Used and idle buffers together stay within the budget.
    if (used_ + idle_bytes_ <= budget_ && acquired_ - last->since <= kKeptFor) break;
    idle_bytes_ -= last->size;
    Free(last->data, last->size);
  }
  idle_.erase(idle_.begin(), last);
}

ArenaStaging::ArenaStaging(std::span<std::byte> arena, std::byte* mirror)
    : arena_(arena), mirror_(mirror) {
  MutexLock lock(mutex_);
  if (!arena_.empty()) free_[0] = arena_.size();
}

ArenaStaging::~ArenaStaging() {
  MutexLock lock(mutex_);
  PENSTOCK_CHECK_EQ(used_, 0u);
}

StagingBuffer ArenaStaging::AcquireIn(std::byte* base, size_t bytes) {
  const size_t size = (std::max(bytes, kPage) + kPage - 1) / kPage * kPage;
  MutexLock lock(mutex_);
  const auto found = std::find_if(free_.begin(), free_.end(),
                                  [&](const auto& stretch) { return stretch.second >= size; });
  if (found == free_.end()) return {};
  const auto [at, room] = *found;
  free_.erase(found);
  if (room > size) free_[at + size] = room - size;
  used_ += size;
  return StagingBuffer(this, base + at, size);
}

bool ArenaStaging::IsMirrored(const std::byte* data) const {
  const auto at = reinterpret_cast<uintptr_t>(data), base = reinterpret_cast<uintptr_t>(mirror_);
  return mirror_ != nullptr && at >= base && at - base < arena_.size();
}

size_t ArenaStaging::used() const {
  MutexLock lock(mutex_);
  return used_;
}

void ArenaStaging::Release(std::byte* data, size_t size) {
  MutexLock lock(mutex_);
  used_ -= size;
  const auto at = static_cast<size_t>(data - (IsMirrored(data) ? mirror_ : arena_.data()));
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
