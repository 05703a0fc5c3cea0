#include "bench/simulate.h"

#include <fmt/format.h>

#include <algorithm>
#include <filesystem>
#include <nlohmann/json.hpp>

namespace penstock {
namespace {

constexpr double kGoodputShare = 0.9;
constexpr double kRhoLeast = 0.2;
constexpr double kRhoMost = 4;
constexpr int kHalvings = 9;

absl::StatusOr<SimResult> FindGoodput(const SimTrace& trace, SimOptions options) {
  double low = kRhoLeast;
  double high = kRhoMost;
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
  for (double SimResult::*field :
       {&SimResult::requests_per_s, &SimResult::speed, &SimResult::block_hit, &SimResult::token_hit,
        &SimResult::pulled, &SimResult::busy_over_mean, &SimResult::slo, &SimResult::ttft_p50_s,
        &SimResult::ttft_p90_s, &SimResult::ttft_p99_s, &SimResult::ttft_mean_s,
        &SimResult::tpot_p50_ms, &SimResult::tpot_p99_ms, &SimResult::ttft_error_p50}) {
    sum.*field += share * (one.*field);
  }
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
  if (options.traces.empty()) traces.emplace_back("synthetic", MakeTrace({}));
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

std::string SimulationJson(const std::vector<SimulateRow>& rows) {
  nlohmann::ordered_json out = {{"simulate", nlohmann::ordered_json::array()}};
  for (const SimulateRow& row : rows) {
    const SimResult& result = row.result;
    out["simulate"].push_back({{"trace", row.trace},
                               {"policy", row.policy},
                               {"workers", row.workers},
                               {"requests_per_s", result.requests_per_s},
                               {"block_hit", result.block_hit},
                               {"token_hit", result.token_hit},
                               {"pulled_share_of_hits", result.pulled},
                               {"busy_max_over_mean", result.busy_over_mean},
                               {"slo_share", result.slo},
                               {"ttft_mean_s", result.ttft_mean_s},
                               {"ttft_p50_s", result.ttft_p50_s},
                               {"ttft_p90_s", result.ttft_p90_s},
                               {"ttft_p99_s", result.ttft_p99_s},
                               {"tpot_p50_ms", result.tpot_p50_ms},
                               {"tpot_p99_ms", result.tpot_p99_ms},
                               {"ttft_prediction_error_p50", result.ttft_error_p50}});
  }
  return out.dump(2);
}

std::string SimulationText(const std::vector<SimulateRow>& rows) {
  std::string text = fmt::format("{:<13}{:<17}{:>8}{:>8}{:>7}{:>9}{:>7}{:>8}{:>8}{:>8}{:>9}{:>9}\n",
                                 "trace", "policy", "workers", "req/s", "hit", "busiest", "slo",
                                 "ttft50", "ttft90", "ttft99", "tpot50", "tpot99");
  for (const SimulateRow& row : rows) {
    const SimResult& r = row.result;
    text += fmt::format(
        "{:<13}{:<17}{:>8}{:>8.2f}{:>7.3f}{:>9.3f}{:>6.1f}%{:>7.2f}s{:>7.2f}s{:>7.2f}s{:>7.1f}ms"
        "{:>7.1f}ms\n",
        row.trace.substr(0, 12), row.policy, row.workers, r.requests_per_s, r.block_hit,
        r.busy_over_mean, 100 * r.slo, r.ttft_p50_s, r.ttft_p90_s, r.ttft_p99_s, r.tpot_p50_ms,
        r.tpot_p99_ms);
  }
  return text;
}

}  // namespace penstock
