#pragma once

#include <deque>
#include <memory>
#include <queue>
#include <string>
#include <vector>

#include "lab/simulate/sim_cache.h"
#include "lab/simulate/sim_decode.h"
#include "lab/simulate/sim_router.h"

namespace penstock {

// How a simulated cluster is made. Service times are those of a 70B model on eight A800.
struct SimOptions {
  uint32_t workers = 16;            // prefill
  uint32_t decode_workers = 0;      // 0: decoding takes no time and is not looked at
  uint64_t cache_blocks = 58'594;   // of all prefill workers together: 30M tokens
  std::string policy = "penstock";  // or one of SimPolicyNames(), or "pool"
  bool shared_stores = false;       // workers read each other's
  double rho = 1;                   // share of time that prefill would be busy without any cache
  double speed = 0;                 // of the trace's clock; 0: what rho says
  double index_lag_s = 0;           // until the router hears of a change
  uint64_t seed = 0;
  PlacementPolicy placement;
  bool predictions = true;
  PrefillModel prefill{.base_ms = 30, .ms_per_token = 1000 / 8900.0, .ms_per_square = 1.05e-6};
  double kv_ms_per_token = 320 * 1024 / 40e9 * 1000;  // 320 KiB at 40 GB/s
  StepModel step{.base_ms = 16, .ms_per_sequence = 0.11, .ms_per_context_token = 2.9e-5};
  double decode_context_max = 1.3e6;  // tokens, of each decode worker
  double tpot_limit_ms = 100;
};

struct SimResult {
  double requests_per_s = 0;  // offered
  double speed = 0;
  double block_hit = 0;  // shares of all blocks, and of all prompt tokens
  double token_hit = 0;
  double pulled = 0;          // share of the hit tokens that came from another worker
  double busy_over_mean = 0;  // of the busiest prefill worker
  double slo = 0;             // share of requests: TTFT within 1 s + 2 x a whole prefill, and TPOT
  double ttft_p50_s = 0;
  double ttft_p90_s = 0;
  double ttft_p99_s = 0;
  double ttft_mean_s = 0;
  double tpot_p50_ms = 0;
  double tpot_p99_ms = 0;
  double ttft_error_p50 = 0;  // |predicted - real| over real, of the production router
  std::vector<float> ttft_s;  // sorted
};

// Errors: an unknown policy, more workers than an index takes.
absl::StatusOr<SimResult> Simulate(const SimTrace& trace, const SimOptions& options);

}  // namespace penstock
