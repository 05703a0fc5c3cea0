#include "lab/simulate/simulate.h"

#include <fmt/format.h>

#include <algorithm>
#include <atomic>
#include <filesystem>
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

absl::StatusOr<SimulateRow> RunRow(const SimulateOptions& options, Planned planned) {
  SimulateRow& row = planned.row;
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
                    .index_lag_s = options.index_lag_ms / 1000,
                    .seed = seed}};
    ASSIGN_OR_RETURN(SimResult result, options.goodput ? FindGoodput(job) : Simulate(job));
    AddShare(row.result, result, 1.0 / options.seeds);
    row.result.ttft_s = std::move(result.ttft_s);
  }
  return std::move(row);
}

std::vector<Planned> PlanRows(const SimulateOptions& options) {
  std::vector<SimSource> sources;
  for (const std::string& path : options.traces) {
    sources.push_back({.path = path, .copies = options.copies});
  }
  if (sources.empty()) {
    sources.push_back({.synthetic = {.requests = options.synthetic_requests}});
  }
  std::vector<Planned> rows;
  for (const SimSource& source : sources) {
    const std::string name = source.path.empty()
                                 ? std::string("synthetic")
                                 : std::filesystem::path(source.path).stem().string();
    for (const uint32_t workers : options.workers) {
      for (const std::string& policy : options.policies) {
        rows.push_back({source, {.trace = name, .policy = policy, .workers = workers}});
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
        progress(fmt::format("{} on {} workers, {}", row.trace, row.workers, row.policy));
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
