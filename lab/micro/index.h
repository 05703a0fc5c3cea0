#pragma once

#include <functional>
#include <string>
#include <vector>

#include "base/status.h"
#include "lab/report/report.h"

namespace penstock {

struct IndexBenchOptions {
  uint64_t blocks = 1'000'000;  // over 64 workers
  double seconds = 3;           // of look-ups
};

// The router's prefix index, on one core, while another thread feeds 100,000 event-blocks a second:
// `lookups_per_s` of prompts of 8 to 512 blocks, `lookup_p99` in microseconds,
// `universal_prompt_loss`: the share of look-ups a second that go when one system prompt stands in
// front of every prompt; `bytes_per_block_worker`; and, alone, `replay_2_3m`: seconds for 2.3
// million events. `fraction` is of the goal.
absl::StatusOr<std::vector<BenchRow>> RunIndexBench(
    const IndexBenchOptions& options, const std::function<void(const std::string&)>& progress);

}  // namespace penstock
