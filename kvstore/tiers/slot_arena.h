#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>

#include "base/status.h"

namespace penstock {

// Memory cut into slots of equal size, aligned to 4,096 bytes, on huge pages where available. Any
// thread, except Prefault.
class SlotArena {
 public:
  // RESOURCE_EXHAUSTED names the size. INVALID_ARGUMENT unless slot_bytes is a positive multiple of
  // 4,096 and slots is positive.
  static absl::StatusOr<std::unique_ptr<SlotArena>> Create(size_t slot_bytes, uint32_t slots);
  ~SlotArena();

  uint32_t slots() const { return slots_; }
  size_t slot_bytes() const { return slot_bytes_; }
  std::byte* Slot(uint32_t slot) const { return arena_ + slot * slot_bytes_; }

  // Makes the next `bytes` bytes of the arena resident, so that the first copy into a slot has no
  // page faults. False once the whole arena is resident. One thread at a time.
  bool Prefault(size_t bytes);

 private:
  SlotArena(std::byte* arena, size_t slot_bytes, uint32_t slots)
      : arena_(arena), slot_bytes_(slot_bytes), slots_(slots) {}
  size_t bytes() const { return slot_bytes_ * slots_; }

  std::byte* const arena_;
  const size_t slot_bytes_;
  const uint32_t slots_;
  size_t faulted_ = 0;  // bytes
};

}  // namespace penstock
