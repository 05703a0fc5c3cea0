#pragma once

#include <functional>
#include <string>
#include <vector>

#include "base/status.h"
#include "lab/report/report.h"

namespace penstock {

struct EvictionBenchOptions {
  int threads = 0;  // 0: every core
  int rounds = 3;   // of which the best counts
};

// What an eviction gains and costs, on a model of TinyLlama-1.1B's shape with random weights:
// `evict_decode_speedup`, the time of a decode step of 8 sequences of 8,192 tokens over that of the
// same with 1,024 tokens kept, in bf16 and, with the suffix `_int4`, with 4-bit weights;
// `quest_decode_speedup`, the same where each token selects 1,024 of the 8,192; and
// `snapkv_select_share`, the time of SnapKV's choice of 256 of 2,048 tokens in all layers over that
// of the prompt's prefill.
absl::StatusOr<std::vector<BenchRow>> RunEvictionBench(
    const EvictionBenchOptions& options, const std::function<void(const std::string&)>& progress);

}  // namespace penstock
