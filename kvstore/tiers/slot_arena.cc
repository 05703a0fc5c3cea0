#include "kvstore/tiers/slot_arena.h"

#include <sys/mman.h>

#include <algorithm>
#include <cerrno>
#include <limits>
#include <system_error>

#include "base/bytes.h"

namespace penstock {

absl::StatusOr<std::unique_ptr<SlotArena>> SlotArena::Create(size_t slot_bytes, uint32_t slots) {
  if (slot_bytes == 0 || slot_bytes % 4096 != 0 || slots == 0) {
    return InvalidArgument(
        "slot arena: {} slots of {} bytes; the size must be a positive multiple of 4096", slots,
        slot_bytes);
  }
  if (slots > std::numeric_limits<int64_t>::max() / slot_bytes) {
    return ResourceExhausted(
        "slot arena: {} slots of {} bytes exceed the address space; configure less", slots,
        slot_bytes);
  }
  const size_t bytes = slot_bytes * slots;
  void* arena = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (arena == MAP_FAILED) {
    return ResourceExhausted("slot arena: {} cannot be mapped ({}); configure less",
                             FormatBytes(bytes), std::generic_category().message(errno));
  }
  // Huge pages are an optimisation only; failure is ignored.
  madvise(arena, bytes, MADV_HUGEPAGE);
  return std::unique_ptr<SlotArena>(
      new SlotArena(static_cast<std::byte*>(arena), slot_bytes, slots));
}

SlotArena::~SlotArena() { munmap(arena_, bytes()); }

bool SlotArena::Prefault(size_t bytes_now) {
  const size_t step = std::min(bytes_now, bytes() - faulted_);
  if (step == 0) return false;
#ifdef MADV_POPULATE_WRITE
  // Kernels before 5.14 do not support this; the first copies then take the page faults.
  madvise(arena_ + faulted_, step, MADV_POPULATE_WRITE);
#endif
  faulted_ += step;
  return faulted_ < bytes();
}

}  // namespace penstock
