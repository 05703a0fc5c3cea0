#pragma once

#include <array>
#include <cstdint>

namespace penstock {

enum class EvictionReason : uint8_t { kCapacity, kSwap, kCleared, kCorrupt, kReclaim, kUnreadable };
inline constexpr size_t kEvictionReasons = 6;
// "capacity", "swap", ...: the value of the metric's label.
constexpr const char* EvictionReasonName(EvictionReason reason) {
  constexpr const char* kNames[] = {"capacity", "swap",    "cleared",
                                    "corrupt",  "reclaim", "unreadable"};
  return kNames[static_cast<size_t>(reason)];
}

// What one tier holds and did since it was opened.
struct TierStats {
  uint64_t bytes_total = 0;  // its size
  uint64_t bytes_used = 0;
  uint64_t blocks = 0;
  uint64_t hits = 0;                                   // blocks that Restore had from it
  uint64_t spills = 0;                                 // blocks copied into it
  uint64_t restores = 0;                               // blocks copied out of it, whole
  std::array<uint64_t, kEvictionReasons> evictions{};  // blocks
};

struct StoreStats {
  TierStats dram;
  TierStats nvme;
  uint64_t misses = 0;          // blocks asked of Restore that no tier had
  uint64_t spills_refused = 0;  // at the door, for want of room in the line
  uint64_t spills_dropped = 0;  // behind it, for want of a slot
  uint64_t swap_slots = 0;      // now
  uint64_t swaps_out = 0;       // sequences
  uint64_t swaps_in = 0;
  uint64_t swaps_refused = 0;
};

}  // namespace penstock
