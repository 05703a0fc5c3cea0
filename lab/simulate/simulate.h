#pragma once

#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "lab/simulate/sim_options.h"
#include "lab/simulate/sim_policy.h"

namespace penstock {

// A day of changing load: the copies of a trace, one after the other.
struct SimulateDay {
  double hours = 24;
  double peak_over_trough = 4;
  std::vector<std::string> scalers{"static"};  // names of kScalerNames; a row for each
  SimScaling scaling;                          // without its scaler
};
inline constexpr const char* kScalerNames[] = {"static", "penstock", "keda"};  // by SimScaler

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
  bool goodput = false;            // looks for the highest rate at which 90 % keep the limits
  std::optional<SimulateDay> day;  // rho and goodput have no effect with it
};

struct SimulateRow {
  std::string trace;
  std::string policy;
  std::string scaler;  // empty: no day
  uint32_t workers = 0;
  uint32_t decode_workers = 0;
  SimResult result;  // at rho, or at the goodput; its ttft_s is of the last seed
};

// Errors of Simulate. `progress` is called on several threads, one at a time.
absl::StatusOr<std::vector<SimulateRow>> RunSimulations(
    const SimulateOptions& options, const std::function<void(const std::string&)>& progress);

std::string SimulationJson(const std::vector<SimulateRow>& rows);
std::string SimulationText(const std::vector<SimulateRow>& rows);
// The share of requests over the time to their first token, a line a row, as an SVG file.
absl::Status WriteSimulationPlot(const std::vector<SimulateRow>& rows, const std::string& path);

}  // namespace penstock
