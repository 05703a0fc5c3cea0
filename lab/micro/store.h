#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "base/status.h"
#include "lab/report/report.h"

namespace penstock {

struct StoreBenchOptions {
  std::string directory;  // on the file system to measure; needs 6 GiB. Empty: the temporary one
  // Rounds of the store and of the raw loop in turns. The round with the middle fraction counts: a
  // disk that is shared has good and bad moments, and the best of each would not be of the same
  // one.
  int rounds = 3;
  uint64_t sequential_bytes = uint64_t{1} << 30;
  uint64_t random_bytes = uint64_t{512} << 20;
  uint32_t rebuild_blocks = 1'000'000;
};

// The tiers against a raw loop of the same requests on the same file system (limit), in GB/s:
//   spill_seq      blocks of 2 MiB into the NVMe tier, against O_DIRECT writes one after the other
//   restore_2mib   random blocks out of it, 8 under way, against random O_DIRECT reads
//   restore_128kib the same with blocks of 128 KiB, 16 under way
//   dram_tier      blocks of 2 MiB into the DRAM tier and out of it, against memcpy
// and, with the goal as limit:
//   bytes_per_block  memory of the NVMe index beside id and parent, at `rebuild_blocks` blocks
//   lookup_8192      microseconds that the prefix cache takes for a prefix of 8,192 blocks
//   lookup_8192_nvme ... and the index of the NVMe tier, among `rebuild_blocks`
//   rebuild_1m       seconds until `rebuild_blocks` blocks are found again after a restart
absl::StatusOr<std::vector<BenchRow>> RunStoreBench(
    const StoreBenchOptions& options, const std::function<void(const std::string&)>& progress);

}  // namespace penstock
