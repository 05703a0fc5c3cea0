#include "tests/cuda/emulator/device_arena.h"

#include <sys/mman.h>

#include <cstdint>

#include "base/check.h"

#if defined(__SANITIZE_ADDRESS__)
#define PENSTOCK_ARENA_ASAN 1
#elif defined(__has_feature)
#if __has_feature(address_sanitizer)
#define PENSTOCK_ARENA_ASAN 1
#endif
#endif
#ifdef PENSTOCK_ARENA_ASAN
#include <sanitizer/asan_interface.h>
#endif

namespace penstock::cuda::emulator {
namespace {

constexpr size_t kAlignment = 256;

// Lets AddressSanitizer report accesses to these bytes, or not.
void SetPoisoned([[maybe_unused]] std::byte* p, [[maybe_unused]] size_t bytes,
                 [[maybe_unused]] bool poisoned) {
#ifdef PENSTOCK_ARENA_ASAN
  poisoned ? __asan_poison_memory_region(p, bytes) : __asan_unpoison_memory_region(p, bytes);
#endif
}

}  // namespace

DeviceArena::DeviceArena() {
  void* const reserved =
      mmap(nullptr, kBytes + kPage, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  PENSTOCK_CHECK(reserved != MAP_FAILED, "no addresses for an emulated device's memory");
  const auto address = reinterpret_cast<uintptr_t>(reserved);
  begin_ = static_cast<std::byte*>(reserved) + (kPage - address % kPage);
  madvise(begin_, kBytes, MADV_HUGEPAGE);  // advice: without huge pages Protect is slower
}

void* DeviceArena::Allocate(size_t bytes) {
  if (bytes > kBytes) return nullptr;
  // Behind each allocation is a gap that no other has.
  const size_t size = (bytes + kAlignment - 1) / kAlignment * kAlignment + kAlignment;
  size_t offset = kAlignment;
  for (const auto& [begin, end] : allocations_) {  // first fit
    if (begin - offset >= size) break;
    offset = end;
  }
  if (size > kBytes - offset) return nullptr;
  Grow(offset + size);
  allocations_[offset] = offset + size;
  SetPoisoned(begin_ + offset, bytes, false);
  return begin_ + offset;
}

void DeviceArena::Free(void* p) {
  const auto found = allocations_.find(static_cast<size_t>(static_cast<std::byte*>(p) - begin_));
  PENSTOCK_CHECK(found != allocations_.end(), "freed memory that is not allocated");
  SetPoisoned(begin_ + found->first, found->second - found->first, true);
  allocations_.erase(found);
}

void DeviceArena::SetOpen(bool open) {
  if (open == open_) return;
  open_ = open;
  Protect();
}

bool DeviceArena::Contains(const void* p) const {
  const auto* const byte = static_cast<const std::byte*>(p);
  return byte >= begin_ && byte < begin_ + kBytes;
}

void DeviceArena::Grow(size_t end) {
  if (end <= used_) return;
  const size_t before = used_;
  used_ = (end + kPage - 1) / kPage * kPage;
  SetPoisoned(begin_ + before, used_ - before, true);
  if (open_) Protect();
}

void DeviceArena::Protect() const {
  if (used_ == 0) return;
  const int access = open_ ? PROT_READ | PROT_WRITE : PROT_NONE;
  PENSTOCK_CHECK_EQ(mprotect(begin_, used_, access), 0);
}

}  // namespace penstock::cuda::emulator
