#include "lab/simulate/simulate.h"

#include <fmt/format.h>

#include <filesystem>

namespace penstock {
namespace {

constexpr double kGoodputShare = 0.9;
constexpr double kRhoMin = 0.2;
constexpr double kRhoMax = 4;
constexpr int kHalvings = 9;

absl::StatusOr<SimResult> FindGoodput(const SimTrace& trace, SimOptions options) {
  double low = kRhoMin;
  double high = kRhoMax;
  SimResult best;
  for (int i = 0; i < kHalvings; ++i) {
    options.rho = (low + high) / 2;
    ASSIGN_OR_RETURN(SimResult result, Simulate(trace, options));
    if (result.slo >= kGoodputShare) {
      low = options.rho;
      best = std::move(result);
    } else {
      high = options.rho;
    }
  }
  return best;
}

void AddShare(SimResult& sum, const SimResult& one, double share) {
  for (const SimFigure& figure : kSimFigures) sum.*figure.field += share * (one.*figure.field);
}

absl::StatusOr<SimulateRow> RunRow(const SimTrace& trace, const SimulateOptions& options,
                                   SimulateRow row) {
  for (uint32_t seed = 0; seed < options.seeds; ++seed) {
    const SimOptions one{
        .workers = row.workers,
        .decode_workers = options.decode_workers,
        .cache_blocks = (options.cache_tokens + trace.block_tokens - 1) / trace.block_tokens,
        .policy = row.policy,
        .shared_stores = options.shared_stores,
        .rho = options.rho,
        .index_lag_s = options.index_lag_ms / 1000,
        .seed = seed};
    ASSIGN_OR_RETURN(SimResult result,
                     options.goodput ? FindGoodput(trace, one) : Simulate(trace, one));
    AddShare(row.result, result, 1.0 / options.seeds);
    row.result.ttft_s = std::move(result.ttft_s);
  }
  return row;
}

absl::StatusOr<std::vector<std::pair<std::string, SimTrace>>> LoadAll(
    const SimulateOptions& options) {
  std::vector<std::pair<std::string, SimTrace>> traces;
  if (options.traces.empty()) {
    traces.emplace_back("synthetic", MakeTrace({.requests = options.synthetic_requests}));
  }
  for (const std::string& path : options.traces) {
    ASSIGN_OR_RETURN(SimTrace trace, LoadTrace(path, options.copies, /*seed=*/0));
    traces.emplace_back(std::filesystem::path(path).stem().string(), std::move(trace));
  }
  return traces;
}

}  // namespace

absl::StatusOr<std::vector<SimulateRow>> RunSimulations(
    const SimulateOptions& options, const std::function<void(const std::string&)>& progress) {
  ASSIGN_OR_RETURN(const auto traces, LoadAll(options));
  std::vector<SimulateRow> rows;
  for (const auto& [name, trace] : traces) {
    for (const uint32_t workers : options.workers) {
      for (const std::string& policy : options.policies) {
        progress(fmt::format("{} on {} workers, {}", name, workers, policy));
        ASSIGN_OR_RETURN(
            SimulateRow row,
            RunRow(trace, options, {.trace = name, .policy = policy, .workers = workers}));
        rows.push_back(std::move(row));
      }
    }
  }
  return rows;
}

}  // namespace penstock
