#pragma once

#include <functional>
#include <string>
#include <vector>

#include "lab/simulate/sim_cluster.h"

namespace penstock {

// The runs of `penstock simulate`: every trace with every number of workers and every policy.
struct SimulateOptions {
  std::vector<std::string> traces;  // none: a synthetic workload
  std::vector<uint32_t> workers{16};
  std::vector<std::string> policies{"penstock"};
  uint32_t decode_workers = 0;
  uint64_t cache_tokens = 30'000'000;  // of all prefill workers together
  uint32_t copies = 1;
  uint32_t synthetic_requests = 4000;
  uint32_t seeds = 1;  // rows are means over them
  double rho = 1;
  double index_lag_ms = 0;
  bool shared_stores = false;
  bool goodput = false;  // looks for the highest rate at which 90 % keep the limits
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
    {"ttft_mean_s", &SimResult::ttft_mean_s},
    {"ttft_p50_s", &SimResult::ttft_p50_s},
    {"ttft_p90_s", &SimResult::ttft_p90_s},
    {"ttft_p99_s", &SimResult::ttft_p99_s},
    {"tpot_p50_ms", &SimResult::tpot_p50_ms},
    {"tpot_p99_ms", &SimResult::tpot_p99_ms},
    {"ttft_prediction_error_p50", &SimResult::ttft_error_p50},
};

struct SimulateRow {
  std::string trace;
  std::string policy;
  uint32_t workers = 0;
  SimResult result;  // at rho, or at the goodput; its ttft_s is of the last seed
};

// Errors of LoadTrace and Simulate.
absl::StatusOr<std::vector<SimulateRow>> RunSimulations(
    const SimulateOptions& options, const std::function<void(const std::string&)>& progress);

std::string SimulationJson(const std::vector<SimulateRow>& rows);
std::string SimulationText(const std::vector<SimulateRow>& rows);
// The share of requests over the time to their first token, a line a row, as an SVG file.
absl::Status WriteSimulationPlot(const std::vector<SimulateRow>& rows, const std::string& path);

}  // namespace penstock
