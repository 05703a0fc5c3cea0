#include "cli/command_line_placement.h"

#include <CLI/CLI.hpp>

#include "cli/validators.h"

namespace penstock {
void AddSimulate(CLI::App& app, SimulateCommand& simulate) {
  CLI::App& command =
      *app.add_subcommand("simulate", "run the router's decisions over a trace, without workers");
  command.footer("");
  command
      .add_option("--trace", simulate.traces,
                  "requests, Mooncake's JSON lines; repeat for more [a synthetic workload]")
      ->type_name("FILE");
  command.add_option("--workers", simulate.workers, "prefill workers, 1 to 4096; a row each [16]")
      ->check(Quiet(CLI::Range(1, 4096)))
      ->delimiter(',')
      ->type_name("N,...");
  command
      .add_option("--policy", simulate.policies,
                  "penstock, or others' rules by name; all for all of them [penstock]")
      ->delimiter(',')
      ->type_name("NAME,...");
  command.add_option("--decode-workers", simulate.decode_workers, "0: only prefill takes time [0]")
      ->check(Quiet(CLI::Range(0, 4096)))
      ->type_name("N");
  command.add_option("--cache-tokens", simulate.cache_tokens, "of all workers together [30000000]")
      ->type_name("N");
  command.add_option("--copies", simulate.copies, "tenants with a copy of the trace each [1]")
      ->check(Quiet(CLI::Range(1, 1024)))
      ->type_name("N");
  command.add_option("--requests", simulate.requests, "of the synthetic workload [4000]")
      ->check(Quiet(CLI::Range(2, 10'000'000)))
      ->excludes("--trace")
      ->type_name("N");
  command.add_option("--seeds", simulate.seeds, "rows are means over so many runs [1]")
      ->check(Quiet(CLI::Range(1, 100)))
      ->type_name("N");
  command
      .add_option("--rho", simulate.rho, "load: how busy prefill would be without any cache [1]")
      ->check(Quiet(CLI::PositiveNumber))
      ->type_name("X");
  command
      .add_option("--index-lag", simulate.index_lag_ms,
                  "until the router hears of a change in a cache [0]")
      ->check(Quiet(CLI::NonNegativeNumber))
      ->type_name("MS");
  command.add_flag("--shared-stores", simulate.shared_stores, "workers read each other's caches");
  command.add_flag("--goodput", simulate.goodput,
                   "the highest rate at which 90 % of requests keep their limits");
  command.add_flag("--json", simulate.json, "rows as JSON instead of a table");
  command.add_option("--plot", simulate.plot, "draws the times to the first token")
      ->type_name("FILE.svg");
}

CLI::App& AddExplain(CLI::App& app, ExplainOptions& explain) {
  CLI::App& command = *app.add_subcommand(
      "explain", "why the router sends a prompt where it does; computes one token");
  command.footer("");
  command.add_option("PROMPT", explain.prompt, "the text")->required()->type_name("");
  command.add_flag("--json", explain.json, "the Explanation as JSON");
  return command;
}

}  // namespace penstock
