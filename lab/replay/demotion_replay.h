#pragma once

#include <cstdint>

#include "base/status.h"
#include "lab/replay/cache_trace.h"

namespace penstock {

// Which blocks that leave host memory are written to NVMe.
struct DemotionRule {
  uint32_t uses_min = 1;  // by sequences, the first included (--nvme_min_uses)
  // A block that was read from NVMe stays there, so it needs no second write.
  bool keeps_copies = true;
  bool keeps_partial = false;  // blocks that are not full; workers never do
};
// Every block that leaves host memory is written, and moves up again when it is read.
inline constexpr DemotionRule kPlainDemotion{
    .uses_min = 1, .keeps_copies = false, .keeps_partial = true};

struct DemotionCounts {
  int64_t writes = 0;  // blocks, to NVMe
  int64_t hits = 0;    // blocks, read from NVMe
};

// Replays a trace over two tiers of the given numbers of blocks, each evicting the least recently
// used.
absl::StatusOr<DemotionCounts> ReplayDemotion(const CacheTrace& trace, uint32_t dram_blocks,
                                              uint32_t nvme_blocks, const DemotionRule& rule);

}  // namespace penstock
