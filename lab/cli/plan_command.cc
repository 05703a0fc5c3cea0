#include <CLI/CLI.hpp>

#include "cli/shell/command_line.h"
#include "cli/shell/lab_commands.h"
#include "cli/shell/validators.h"
#include "lab/cli/commands.h"

namespace penstock {
namespace {

CLI::Validator Above0(double max = 1e15) { return Quiet(CLI::Range(1e-9, max)); }

void AddPlanHardware(CLI::App& command, PlanOptions& plan) {
  command.add_option("--model", plan.model, "directory of the checkpoint, or a GGUF file")
      ->required()
      ->type_name("DIR");
  command
      .add_option("--hardware", plan.hardware,
                  "hardware of a worker: h200, l40s, ...; cpu measures this machine [cpu]")
      ->type_name("NAME");
  command.add_option("--memory", plan.memory, "override the memory size, e.g. 80GiB")
      ->check(Size())
      ->type_name("SIZE");
  command.add_option("--read-gbps", plan.read_gbps, "override the memory bandwidth")
      ->check(Above0())
      ->type_name("GB/S");
  command.add_option("--tflops", plan.tflops, "override the compute rate, in TFLOP/s")
      ->check(Above0())
      ->type_name("X");
  command
      .add_option("--kv-memory", plan.kv_memory,
                  "KV memory of a worker [90 % of the memory minus the weights]")
      ->check(Size())
      ->type_name("SIZE");
  command.add_option("--block-tokens", plan.block_tokens, "tokens per block [16]")
      ->check(Quiet(CLI::IsMember({16, 32, 64})))
      ->type_name("N");
  command
      .add_option("--max-batch", plan.max_batch, "maximum sequences per decode step, 1 to 512 [64]")
      ->check(Quiet(CLI::Range(1, 512)))
      ->type_name("N");
  command
      .add_option("--link-gbps", plan.link_gbps,
                  "bandwidth of a worker's link in each direction, in GB/s [1.25]")
      ->check(Above0())
      ->type_name("GB/S");
  command
      .add_option("--gpu-hour-price", plan.gpu_hour_price,
                  "price of a worker's hour, for the price of a million tokens")
      ->check(Above0())
      ->type_name("PRICE");
}

void AddPlanTraffic(CLI::App& command, PlanOptions& plan) {
  command
      .add_option("--context", plan.contexts, "context length of a row, in tokens; may be repeated")
      ->check(Quiet(CLI::Range(int64_t{1}, int64_t{1} << 40)))
      ->allow_extra_args(false)
      ->type_name("N");
  command.add_option("--rate", plan.rate, "requests per second [1]")
      ->check(Above0())
      ->type_name("X");
  command.add_option("--prompt-tokens", plan.prompt_tokens, "mean prompt length [1024]")
      ->check(Quiet(CLI::Range(1.0, 1e9)))
      ->type_name("N");
  command.add_option("--answer-tokens", plan.answer_tokens, "mean answer length [256]")
      ->check(Quiet(CLI::Range(1.0, 1e9)))
      ->type_name("N");
  command
      .add_option("--hit-ratio", plan.hit_ratio,
                  "share of prompt tokens that are cached, 0 to 1 [0]")
      ->check(Quiet(CLI::Range(0.0, 1.0)))
      ->type_name("X");
  command.add_option("--token-ms", plan.token_ms, "target time between two tokens [50]")
      ->check(Above0())
      ->type_name("MS");
  command.add_option("--utilisation", plan.utilisation, "maximum utilisation of a worker [0.7]")
      ->check(Above0(1))
      ->type_name("X");
  command.add_option("--keep", plan.keep_s, "seconds for which the tiers should keep KV [600]")
      ->check(Above0())
      ->type_name("S");
}

}  // namespace

void AddPlan(CommandLine& line) {
  auto [command, plan] =
      line.Add<PlanOptions>(std::string(kPlanCommand.name), std::string(kPlanCommand.summary));
  AddPlanHardware(command, plan);
  AddPlanTraffic(command, plan);
  command.add_option("--plot", plan.plot, "draw the plan")->type_name("FILE.svg");
  command.add_flag("--json", plan.json, "print one JSON object instead of a table");
}

}  // namespace penstock
