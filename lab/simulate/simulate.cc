#include "lab/simulate/simulate.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <atomic>
#include <filesystem>
#include <iterator>
#include <mutex>
#include <thread>

namespace penstock {
namespace {

constexpr double kGoodputShare = 0.9;
constexpr double kRhoMin = 0.2;
constexpr double kRhoMax = 4;
constexpr int kHalvings = 9;

absl::StatusOr<SimResult> FindGoodput(SimJob job) {
  double low = kRhoMin;
  double high = kRhoMax;
  SimResult best;
  for (int i = 0; i < kHalvings; ++i) {
    job.options.rho = (low + high) / 2;
    ASSIGN_OR_RETURN(SimResult result, Simulate(job));
    if (result.slo >= kGoodputShare) {
      low = job.options.rho;
      best = std::move(result);
    } else {
      high = job.options.rho;
    }
  }
  return best;
}

void AddShare(SimResult& sum, const SimResult& one, double share) {
  for (const SimFigure& figure : kSimFigures) sum.*figure.field += share * (one.*figure.field);
}

// A row that has not been run.
struct Planned {
  SimSource source;
  SimulateRow row;
};

absl::StatusOr<SimScaling> ScalingOf(const SimulateOptions& options, const SimulateRow& row) {
  if (!options.day) return SimScaling();
  SimScaling scaling = options.day->scaling;
  for (size_t i = 0; i < std::size(kScalerNames); ++i) {
    if (row.scaler != kScalerNames[i]) continue;
    scaling.scaler = static_cast<SimScaler>(i);
    return scaling;
  }
  return InvalidArgument("scaler {} is unknown; there are {}", row.scaler,
                         fmt::join(kScalerNames, ", "));
}

absl::StatusOr<SimulateRow> RunRow(const SimulateOptions& options, Planned planned) {
  SimulateRow& row = planned.row;
  ASSIGN_OR_RETURN(const SimScaling scaling, ScalingOf(options, row));
  const uint32_t block_tokens = SimTrace().block_tokens;
  for (uint32_t seed = 0; seed < options.seeds; ++seed) {
    const SimJob job{
        .source = planned.source,
        .options = {.workers = row.workers,
                    .decode_workers = options.decode_workers,
                    .cache_blocks = (options.cache_tokens + block_tokens - 1) / block_tokens,
                    .policy = row.policy,
                    .shared_stores = options.shared_stores,
                    .rho = options.rho,
                    .speed = options.day ? 1.0 : 0.0,
                    .index_lag_s = options.index_lag_ms / 1000,
                    .seed = seed,
                    .scaling = scaling}};
    const bool search = options.goodput && !options.day;
    ASSIGN_OR_RETURN(SimResult result, search ? FindGoodput(job) : Simulate(job));
    AddShare(row.result, result, 1.0 / options.seeds);
    row.result.ttft_s = std::move(result.ttft_s);
  }
  return std::move(row);
}

std::vector<SimSource> SourcesOf(const SimulateOptions& options) {
  SimSource source{.copies = options.copies, .synthetic = {.requests = options.synthetic_requests}};
  if (options.day) {
    source.day_hours = options.day->hours;
    source.peak_over_trough = options.day->peak_over_trough;
  }
  if (options.traces.empty()) return {source};
  std::vector<SimSource> sources;
  for (const std::string& path : options.traces) {
    source.path = path;
    sources.push_back(source);
  }
  return sources;
}

std::vector<Planned> PlanRows(const SimulateOptions& options) {
  const std::vector<std::string> scalers =
      options.day ? options.day->scalers : std::vector<std::string>{""};
  std::vector<Planned> rows;
  for (const SimSource& source : SourcesOf(options)) {
    SimulateRow row{.trace = source.path.empty()
                                 ? "synthetic"
                                 : std::filesystem::path(source.path).stem().string(),
                    .decode_workers = options.decode_workers};
    for (const uint32_t workers : options.workers) {
      for (const std::string& policy : options.policies) {
        for (const std::string& scaler : scalers) {
          row.workers = workers;
          row.policy = policy;
          row.scaler = scaler;
          rows.push_back({source, row});
        }
      }
    }
  }
  return rows;
}

}  // namespace

// Each run is a process of its own, so as many run at once as there are cores.
absl::StatusOr<std::vector<SimulateRow>> RunSimulations(
    const SimulateOptions& options, const std::function<void(const std::string&)>& progress) {
  const std::vector<Planned> planned = PlanRows(options);
  std::vector<absl::StatusOr<SimulateRow>> done(planned.size(), SimulateRow());
  std::atomic<size_t> next{0};
  std::mutex mutex;  // of `progress`
  const auto run = [&] {
    for (size_t i; (i = next++) < planned.size();) {
      const SimulateRow& row = planned[i].row;
      {
        const std::lock_guard lock(mutex);
        progress(fmt::format("{} on {} workers, {}", row.trace, row.workers,
                             row.scaler.empty() ? row.policy : row.scaler));
      }
      done[i] = RunRow(options, planned[i]);
      if (!done[i].ok()) next = planned.size();
    }
  };
  std::vector<std::thread> threads;
  const size_t cores = std::max(1u, std::thread::hardware_concurrency());
  while (threads.size() < std::min(cores, planned.size())) threads.emplace_back(run);
  for (std::thread& thread : threads) thread.join();
  std::vector<SimulateRow> rows;
  for (absl::StatusOr<SimulateRow>& row : done) {
    RETURN_IF_ERROR(row.status());
    rows.push_back(*std::move(row));
  }
  return rows;
}

}  // namespace penstock
