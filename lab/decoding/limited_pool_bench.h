#pragma once

#include <functional>
#include <string>
#include <vector>

#include "base/status.h"
#include "lab/report/report.h"

namespace penstock {

struct LimitedPoolBenchOptions {
  int threads = 0;  // 0: every core
  int rounds = 3;   // of which the best counts
};

// The gain of evictions where memory for KV is short: a decode engine with a model of
// TinyLlama-1.1B's shape, random weights and a pool for 8 whole sequences of 8,192 tokens.
// `kv_limited_goodput_gain`: 32 sequences are offered at once, and a quarter of each prompt's
// tokens is kept, or all. The goodput of the former over that of the latter: tokens per second of
// answers within one target for the time per output token, which is the slowest answer's of both.
// `kv_limited_tpot`: the slowest answer's time per output token with evictions over that without;
// a target below it needs a smaller batch. `kv_unlimited_goodput_gain`: the gain where 8 are
// offered, so that nothing is short. With the suffix `_int4` for 4-bit weights.
absl::StatusOr<std::vector<BenchRow>> RunLimitedPoolBench(
    const LimitedPoolBenchOptions& options,
    const std::function<void(const std::string&)>& progress);

}  // namespace penstock
