#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "base/status.h"
#include "bench/report.h"

namespace penstock {

struct KernelBenchOptions {
  int32_t threads = 0;  // 0: one per CPU this process may use
  int32_t rounds = 3;   // best of; limits and runs take turns in every round
};

// Measures a random-weight TinyLlama-1.1B shape against the machine's read bandwidth and bf16
// dot-product peak, taken in the same run. Needs 4 GiB of memory (RESOURCE_EXHAUSTED) and about a
// minute a round. `progress` gets a line now and then. Rows: decode_b1_1b, prefill_512_1b,
// prefill_2048_1b, decode_b8_over_b1, attention_share_2048, memory_over_weights, and the limits.
absl::StatusOr<std::vector<BenchRow>> RunKernelBench(
    const KernelBenchOptions& options, const std::function<void(const std::string&)>& progress);

}  // namespace penstock
