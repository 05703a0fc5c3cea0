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

// One tier's content, and its totals since it was opened.
struct TierStats {
  uint64_t bytes_total = 0;  // capacity
  uint64_t bytes_used = 0;
  uint64_t blocks = 0;
  uint64_t hits = 0;                                   // blocks that Restore took from it
  uint64_t spills = 0;                                 // blocks copied into it
  uint64_t restores = 0;                               // blocks copied out of it, whole
  std::array<uint64_t, kEvictionReasons> evictions{};  // blocks, by reason
};

struct NvmeStats {
  TierStats tier;
  uint64_t segments = 0;
  uint64_t bytes_admitted = 0;  // of blocks passed to the tier
  uint64_t bytes_written = 0;   // to the disk for them, including metadata and rewrites
  uint64_t corrupt = 0;         // blocks that failed their checksum, and damaged metadata
  uint64_t torn = 0;            // blocks whose write was cut off by a crash
  uint64_t foreign = 0;         // segments dropped because of another format
  uint64_t read_errors = 0;
  uint64_t write_errors = 0;
  uint64_t late_reads = 0;   // blocks that the disk did not deliver in time
  double rebuild_s = 0;      // time of rebuilding the index at start
  uint64_t index_bytes = 0;  // memory of the index, with the blocks' names
  bool serving = true;
  bool writing = false;  // it accepts blocks
  double write_amplification() const {
    return bytes_admitted == 0
               ? 1.0
               : static_cast<double>(bytes_written) / static_cast<double>(bytes_admitted);
  }
};

struct StoreStats {
  TierStats dram;
  NvmeStats nvme;
  const char* io_backend = "";
  uint64_t nvme_hits = 0;          // equals nvme.tier.hits
  uint64_t misses = 0;             // blocks requested by Restore that no tier had
  uint64_t spills_refused = 0;     // the queue was full
  uint64_t spills_dropped = 0;     // dropped from the queue for want of a slot
  uint64_t dram_corrupt = 0;       // blocks in host memory that failed their checksum
  uint64_t demotions_dropped = 0;  // evicted from DRAM unwritten, because the disk was too slow
  uint64_t swap_slots = 0;         // in use now
  uint64_t swaps_out = 0;          // sequences
  uint64_t swaps_in = 0;
  uint64_t swaps_refused = 0;
};

}  // namespace penstock
