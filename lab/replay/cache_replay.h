#pragma once

#include <functional>
#include <span>
#include <string>
#include <vector>

#include "base/status.h"
#include "lab/replay/cache_trace.h"
#include "lab/report/report.h"

namespace penstock {

struct CacheReplay {
  std::string policy;
  int64_t capacity = 0;  // blocks
  // Keeps blocks that are not full, too. Workers never do; published simulations do.
  bool keeps_partial = false;
};

// The number of leading blocks of each request that the prefix cache has, when the whole prompt
// stays after each request and the cache is then evicted to its capacity.
absl::StatusOr<std::vector<size_t>> ReplayHits(const CacheTrace& trace, const CacheReplay& replay);
// Their share of a trace's blocks. Partial blocks count as asked for, whether they are kept or not.
absl::StatusOr<double> ReplayHitRate(const CacheTrace& trace, const CacheReplay& replay);
// The same with room for everything.
double IdealHitRate(const CacheTrace& trace);

struct CacheBenchOptions {
  std::vector<std::string> traces;  // paths; none: a generated workload
  int64_t block_tokens = 512;       // of the traces
  std::vector<int64_t> capacities = {1000, 2000, 5859, 10000, 19531, 30000, 58594, 100000};
  bool keeps_partial = false;
  uint32_t dram_blocks = 5859;  // of host memory above NVMe, which is 16 times as large
  std::string plot;             // path of an SVG to write; empty: none
};

// Rows TRACE/POLICY@CAPACITY: hit rate, against that of an infinite cache that keeps all blocks.
// Rows TRACE/nvme_writes@min_uses=N, TRACE/nvme_hits@...: against plain demotion's.
absl::StatusOr<std::vector<BenchRow>> RunCacheBench(
    const CacheBenchOptions& options, const std::function<void(const std::string&)>& progress);

}  // namespace penstock
