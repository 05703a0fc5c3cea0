#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "base/status.h"
#include "lab/report/report.h"

namespace penstock {

struct KernelBenchOptions {
  int32_t threads = 0;  // 0: one per CPU this process may use
  int32_t rounds = 3;   // best of; limits and runs take turns in every round
};

// Measures a random-weight TinyLlama-1.1B shape against the machine's read bandwidth and bf16
// dot-product peak, taken in the same run. Needs 6 GiB of memory (RESOURCE_EXHAUSTED) and about a
// minute a round. `progress` gets a line now and then. Rows:
//   decode_b1_1b          tokens/s; limit: read bandwidth / bytes of the matrices
//   prefill_512_1b, prefill_2048_1b
//                         tokens/s, in chunks of 512; limit: bf16 dot-product peak / operations
//   decode_b8_over_b1     tokens/s at batch 8 over those at batch 1; limit 8
//   attention_share_2048  of a decode step at 2,048 tokens of context
//   attention_FORMAT      GB/s of pages read by a decode step's attention; limit: read bandwidth
//   decode_b1_FORM, prefill_512_FORM (fp8, int8, int4, q4_k, q5_k, q6_k), decode_b8_int4_over_b1
//                         the same with quantised weights (lab/micro/kernels_weights.h)
//   moe_decode_b1, moe_decode_b1_int4, moe_decode_b1_mxfp4, moe_decode_b8_over_b1,
//     moe_disk_half, moe_disk_quarter and their _hits
//                         decode steps with experts (lab/micro/kernels_experts.h)
//   memory_over_weights   resident at the most, without the pool, over the bytes of the weights
//   read_bandwidth, bf16_dot_product_peak, f32_multiply_add_peak
//                         the limits; kernels compute in f32 where that is the faster of the two
absl::StatusOr<std::vector<BenchRow>> RunKernelBench(
    const KernelBenchOptions& options, const std::function<void(const std::string&)>& progress);

}  // namespace penstock
