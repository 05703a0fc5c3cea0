#include "lab/simulate/simulate.h"

#include <fmt/format.h>

#include "base/lifecycle.h"
#include "cli/shell/interrupts.h"
#include "cli/shell/progress.h"
#include "lab/cli/commands.h"

namespace penstock {
namespace {

int Failed(const absl::Status& status) {
  fmt::print(stderr, "penstock simulate: {}\n", Message(status));
  return static_cast<int>(ExitCodeFor(status));
}

SimulateDay DayOf(const SimulateCommand& command) {
  SimulateDay day{
      .hours = command.day_hours,
      .peak_over_trough = command.peak_over_trough,
      .scaling = {.workers_min = command.workers_min,
                  .workers_max = command.workers_max,
                  .start_up_s = static_cast<double>(command.start_up_s),
                  .cache_blocks = command.worker_cache_tokens / SimTrace().block_tokens}};
  if (!command.scalers.empty()) day.scalers = command.scalers;
  return day;
}

SimulateOptions OptionsOf(const SimulateCommand& command) {
  SimulateOptions options{.traces = command.traces,
                          .decode_workers = command.decode_workers,
                          .cache_tokens = command.cache_tokens,
                          .copies = command.copies,
                          .synthetic_requests = command.requests,
                          .seeds = command.seeds,
                          .rho = command.rho,
                          .index_lag_ms = command.index_lag_ms,
                          .shared_stores = command.shared_stores,
                          .goodput = command.goodput};
  if (!command.workers.empty()) options.workers = command.workers;
  if (!command.policies.empty()) options.policies = command.policies;
  if (command.policies == std::vector<std::string>{"all"}) {
    options.policies = SimPolicyNames();
    options.policies.insert(options.policies.begin(), "penstock");
  }
  if (command.day_hours > 0) options.day = DayOf(command);
  return options;
}

}  // namespace

int Run(const SimulateCommand& command) {
  EndAtOnceAtSignals();
  Progress progress;
  const auto rows =
      RunSimulations(OptionsOf(command), [&](const std::string& text) { progress.Line(text); });
  if (!rows.ok()) return Failed(rows.status());
  fmt::print("{}\n", command.json ? SimulationJson(*rows) : SimulationText(*rows));
  if (command.plot.empty()) return 0;
  const absl::Status written = WriteSimulationPlot(*rows, command.plot);
  return written.ok() ? 0 : Failed(written);
}

}  // namespace penstock
