#include <CLI/CLI.hpp>

#include "cli/shell/command_line.h"
#include "cli/shell/lab_commands.h"
#include "cli/shell/validators.h"
#include "lab/cli/commands.h"

namespace penstock {

void AddSimulate(CommandLine& line) {
  auto [command, simulate] = line.Add<SimulateCommand>(std::string(kSimulateCommand.name),
                                                       std::string(kSimulateCommand.summary));
  command
      .add_option("--trace", simulate.traces,
                  "trace to replay, Mooncake's JSON lines; may be repeated [a synthetic workload]")
      ->type_name("FILE");
  command
      .add_option("--workers", simulate.workers,
                  "prefill workers, 1 to 4096; one row per number [16]")
      ->check(Quiet(CLI::Range(1, 4096)))
      ->delimiter(',')
      ->type_name("N,...");
  command
      .add_option("--policy", simulate.policies,
                  "placement policy: penstock, all, or other routers' policies by name [penstock]")
      ->delimiter(',')
      ->type_name("NAME,...");
  command
      .add_option("--decode-workers", simulate.decode_workers,
                  "decode workers; 0 simulates prefill only [0]")
      ->check(Quiet(CLI::Range(0, 4096)))
      ->type_name("N");
  command
      .add_option("--cache-tokens", simulate.cache_tokens,
                  "cache size of all workers together, in tokens [30000000]")
      ->type_name("N");
  command
      .add_option("--copies", simulate.copies, "tenants, each with its own copy of the trace [1]")
      ->check(Quiet(CLI::Range(1, 1024)))
      ->type_name("N");
  command.add_option("--requests", simulate.requests, "requests of the synthetic workload [4000]")
      ->check(Quiet(CLI::Range(2, 10'000'000)))
      ->excludes("--trace")
      ->type_name("N");
  command.add_option("--seeds", simulate.seeds, "runs per row; the row is their mean [1]")
      ->check(Quiet(CLI::Range(1, 100)))
      ->type_name("N");
  command
      .add_option("--rho", simulate.rho, "load: utilisation of prefill if nothing were cached [1]")
      ->check(Quiet(CLI::PositiveNumber))
      ->type_name("X");
  command
      .add_option("--index-lag", simulate.index_lag_ms,
                  "delay until the router learns of a change in a cache [0]")
      ->check(Quiet(CLI::NonNegativeNumber))
      ->type_name("MS");
  command.add_flag("--shared-stores", simulate.shared_stores,
                   "let workers read each other's caches");
  command.add_flag("--goodput", simulate.goodput,
                   "find the highest rate at which 90 % of requests meet their SLO");
  CLI::Option* const day =
      command
          .add_option("--day", simulate.day_hours,
                      "play the copies one after the other over a day of this many hours, with a "
                      "rate that follows a cosine; needs --decode-workers")
          ->check(Quiet(CLI::Range(0.1, 1000.0)))
          ->excludes("--rho")
          ->excludes("--goodput")
          ->type_name("HOURS");
  command
      .add_option("--scaler", simulate.scalers,
                  "changes of the number of workers during the day, a row each: static (none), "
                  "penstock (--autoscale), keda (the chart's ScaledObjects) [static]")
      ->delimiter(',')
      ->needs(day)
      ->type_name("NAME,...");
  command
      .add_option("--peak", simulate.peak_over_trough,
                  "highest rate of the day over its lowest [4]")
      ->check(Quiet(CLI::Range(1.0, 1000.0)))
      ->needs(day)
      ->type_name("X");
  command.add_option("--workers-min", simulate.workers_min, "fewest workers of each role [1]")
      ->check(Quiet(CLI::Range(1, 1000)))
      ->needs(day)
      ->type_name("N");
  command.add_option("--workers-max", simulate.workers_max, "most workers of each role [16]")
      ->check(Quiet(CLI::Range(1, 1000)))
      ->needs(day)
      ->type_name("N");
  command
      .add_option("--start-up", simulate.start_up_s,
                  "time from a new worker to its first request [120]")
      ->needs(day)
      ->type_name("S");
  command
      .add_option("--worker-cache-tokens", simulate.worker_cache_tokens,
                  "with --day, the cache size of each prefill worker, in tokens [1875000]")
      ->needs(day)
      ->type_name("N");
  command.add_flag("--json", simulate.json, "print rows as JSON instead of a table");
  command.footer(
      "Columns: `busiest` is the load of the busiest prefill worker over the mean; `slo` is the "
      "share "
      "of requests that meet their SLO.");
  command.add_option("--plot", simulate.plot, "draw the distribution of TTFT")
      ->type_name("FILE.svg");
}

}  // namespace penstock
