#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "base/status.h"
#include "lab/simulate/sim_trace.h"
#include "router/placement/cost_models.h"

namespace penstock {

// Who changes the number of workers during a run.
enum class SimScaler {
  kNone,      // a static fleet
  kPenstock,  // the router's autoscaling
  kKeda,      // the rule of the chart's ScaledObjects and the HorizontalPodAutoscaler below them
};

struct SimScaling {
  SimScaler scaler = SimScaler::kNone;
  uint32_t workers_min = 1;  // of each role
  uint32_t workers_max = 16;
  double start_up_s = 120;    // from a new worker to its first request
  double drain_s = 30;        // limit of the time that a worker which ends may drain
  uint64_t cache_blocks = 0;  // of one prefill worker; 0: its share of SimOptions::cache_blocks
};

// The description of a simulated cluster, and its times: those of a 70B model on eight A800.
struct SimOptions {
  uint32_t workers = 16;            // prefill
  uint32_t decode_workers = 0;      // 0: one whose steps take no time, for answers of one token
  uint64_t cache_blocks = 58'594;   // of all prefill workers together: 30M tokens
  std::string policy = "penstock";  // or one of SimPolicyNames()
  bool shared_stores = false;       // workers read each other's
  double rho = 1;                   // share of time that prefill would be busy without any cache
  double speed = 0;                 // of the trace's clock; 0: what rho says
  double index_lag_s = 0;           // added to the time until the router hears of a change
  uint64_t seed = 0;
  uint32_t chunk_tokens = 8192;  // of a prefill step, for which PrefillModel::base_ms is paid once
  PrefillModel prefill{.base_ms = 30, .ms_per_token = 1000 / 8900.0, .ms_per_square = 1.05e-6};
  double kv_ms_per_token = 320 * 1024 / 40e9 * 1000;  // 320 KiB at 40 GB/s
  StepModel step{.base_ms = 16, .ms_per_sequence = 0.11, .ms_per_context_token = 2.9e-5};
  double decode_context_max = 1.3e6;  // tokens, of each decode worker
  double tpot_limit_ms = 100;
  SimScaling scaling;
};

struct SimResult {
  double requests_per_s = 0;  // offered
  double speed = 0;
  double block_hit = 0;  // shares of all full blocks, and of all prompt tokens
  double token_hit = 0;
  double pulled = 0;          // share of the hit tokens that came from another worker
  double busy_over_mean = 0;  // of the busiest prefill worker
  double slo = 0;             // share of requests: TTFT within 1 s + 2 x a whole prefill, and TPOT
  double failed = 0;          // share of requests
  double ttft_p50_s = 0;
  double ttft_p90_s = 0;
  double ttft_p99_s = 0;
  double ttft_mean_s = 0;
  double tpot_p50_ms = 0;
  double tpot_p99_ms = 0;
  double ttft_error_p50 = 0;  // |predicted - real| over real
  // From the start of a worker to its end, until the last answer.
  double prefill_worker_hours = 0;
  double decode_worker_hours = 0;
  // While the workers ran: the mean share of the time in which a prefill worker computed, and the
  // mean number of sequences that a decode worker's steps had.
  double prefill_use = 0;
  double decode_sequences = 0;
  double scale_changes = 0;   // of the number of replicas of a role
  double scale_turns = 0;     // those in another direction than the change before
  std::vector<float> ttft_s;  // sorted
};

// The figures of a result, by the names that --json has.
struct SimFigure {
  const char* name;
  double SimResult::*field;
};
inline constexpr SimFigure kSimFigures[] = {
    {"requests_per_s", &SimResult::requests_per_s},
    {"speed", &SimResult::speed},
    {"block_hit", &SimResult::block_hit},
    {"token_hit", &SimResult::token_hit},
    {"pulled_share_of_hits", &SimResult::pulled},
    {"busy_max_over_mean", &SimResult::busy_over_mean},
    {"slo_share", &SimResult::slo},
    {"failed_share", &SimResult::failed},
    {"ttft_mean_s", &SimResult::ttft_mean_s},
    {"ttft_p50_s", &SimResult::ttft_p50_s},
    {"ttft_p90_s", &SimResult::ttft_p90_s},
    {"ttft_p99_s", &SimResult::ttft_p99_s},
    {"tpot_p50_ms", &SimResult::tpot_p50_ms},
    {"tpot_p99_ms", &SimResult::tpot_p99_ms},
    {"ttft_prediction_error_p50", &SimResult::ttft_error_p50},
    {"prefill_worker_hours", &SimResult::prefill_worker_hours},
    {"decode_worker_hours", &SimResult::decode_worker_hours},
    {"prefill_use", &SimResult::prefill_use},
    {"decode_sequences", &SimResult::decode_sequences},
    {"scale_changes", &SimResult::scale_changes},
    {"scale_turns", &SimResult::scale_turns},
};

// One run: a cluster and its workload.
struct SimJob {
  SimSource source;
  SimOptions options;
};

// Runs the job in a process of the program penstock-lab-world. Errors: an unknown policy, more
// workers than an index takes, a trace that cannot be read, a program that is not installed.
absl::StatusOr<SimResult> Simulate(const SimJob& job);

// Between the two programs: JSON.
inline constexpr const char* kWorldProgram = "penstock-lab-world";
std::string JobText(const SimJob& job);
absl::StatusOr<SimJob> ParseJob(const std::string& text);
std::string ResultText(const absl::StatusOr<SimResult>& result);
absl::StatusOr<SimResult> ParseResult(const std::string& text);

}  // namespace penstock
