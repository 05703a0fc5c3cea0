#include <CLI/CLI.hpp>

#include "cli/shell/command_line.h"
#include "cli/shell/lab_commands.h"
#include "cli/shell/validators.h"
#include "lab/cli/commands.h"

namespace penstock {
namespace {

CLI::Validator Above0(double max = 1e15) { return Quiet(CLI::Range(1e-9, max)); }

CLI::Validator Degree() { return Quiet(CLI::IsMember({"auto", "1", "2", "4", "8"})); }

void AddPlanModel(CLI::App& command, PlanOptions& plan) {
  command
      .add_option("--model", plan.model,
                  "directory of the checkpoint, of which config.json is enough unless weights are "
                  "quantised, or a GGUF file")
      ->required()
      ->type_name("DIR");
  command
      .add_option("--weights", plan.weights,
                  "form of the matrices in memory, as the workers' --weights [checkpoint]")
      ->check(Quiet(CLI::IsMember({"checkpoint", "int8", "int4"})))
      ->type_name("FORM");
  command
      .add_option("--kv-format", plan.kv_format,
                  "format of keys and values in KV pages, as the workers' --kv_format [bf16]")
      ->check(FormatOfPages())
      ->type_name("FORMAT");
  command.add_flag("--mtp", plan.mtp,
                   "workers have --speculation=mtp, and so one more layer of weights and KV");
}

void AddPlanHardware(CLI::App& command, PlanOptions& plan) {
  command
      .add_option("--hardware", plan.hardware,
                  "device of a worker: h200, l40s, ...; cpu measures this machine [cpu]")
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
      .add_option("--interconnect-gbps", plan.interconnect_gbps,
                  "override the bandwidth of NVLink or PCIe between the GPUs of a worker, in each "
                  "direction, in GB/s")
      ->check(Above0())
      ->type_name("GB/S");
  command
      .add_option("--tensor-parallel", plan.tensor_parallel,
                  "GPUs of a worker; auto takes the fewest that fit the model, divide its KV heads "
                  "(with latents its attention heads) and keep --token-ms. A step exchanges "
                  "partial sums twice a layer, at 0.8 of the "
                  "data sheet's bandwidth and 15 us each, both assumed [auto]")
      ->check(Degree())
      ->type_name("N");
  command
      .add_option("--prefill-tensor-parallel", plan.prefill_tensor_parallel,
                  "--tensor-parallel of prefill workers")
      ->check(Degree())
      ->type_name("N");
  command
      .add_option("--decode-tensor-parallel", plan.decode_tensor_parallel,
                  "--tensor-parallel of decode workers")
      ->check(Degree())
      ->type_name("N");
  command
      .add_option("--kv-memory", plan.kv_memory,
                  "KV memory of a worker [90 % of the memory minus the weights and, on GPUs, 256 "
                  "MiB]")
      ->check(Size())
      ->type_name("SIZE");
  command
      .add_option("--expert-memory", plan.expert_memory,
                  "memory of a worker for the experts of a mixture, as the workers' "
                  "--expert_memory; the others are on a disk [all]")
      ->check(Size())
      ->type_name("SIZE");
  command
      .add_option("--dram-memory", plan.dram_memory,
                  "host memory of a prefill worker for evicted prefixes, as the workers' "
                  "--dram_memory; counts as cache with --trace [0B]")
      ->check(Size())
      ->type_name("SIZE");
  command.add_option("--block-tokens", plan.block_tokens, "tokens per block [16]")
      ->check(Quiet(CLI::IsMember({16, 32, 64})))
      ->type_name("N");
  command
      .add_option("--chunk-tokens", plan.chunk_tokens,
                  "prompt tokens computed in one step, 16 to 8192 [512; 2048 on GPUs]")
      ->check(Quiet(CLI::Range(16, 8192)))
      ->type_name("N");
  command
      .add_option("--max-batch", plan.max_batch,
                  "maximum sequences per decode step, 1 to 512 [64; 256 on GPUs]")
      ->check(Quiet(CLI::Range(1, 512)))
      ->type_name("N");
  command
      .add_option("--link-gbps", plan.link_gbps,
                  "bandwidth of a worker's link in each direction, in GB/s [1.25]")
      ->check(Above0())
      ->type_name("GB/S");
  command
      .add_option("--wire-codec", plan.wire_codec,
                  "codec of bf16 pages on the link, counted by its nominal size [raw]")
      ->check(Quiet(CLI::IsMember({"raw", "lx16", "lxr"})))
      ->type_name("CODEC");
  command
      .add_option("--gpu-hour-price", plan.gpu_hour_price,
                  "price of an hour of one GPU (of one machine with --hardware=cpu), for the price "
                  "of a million tokens")
      ->check(Above0())
      ->type_name("PRICE");
}

void AddPlanTraffic(CLI::App& command, PlanOptions& plan) {
  command
      .add_option("--context", plan.contexts, "context length of a row, in tokens; may be repeated")
      ->check(Quiet(CLI::Range(int64_t{1}, int64_t{1} << 40)))
      ->allow_extra_args(false)
      ->type_name("N");
  CLI::Option* const trace =
      command
          .add_option("--trace", plan.trace,
                      "trace in Mooncake's JSON lines, as of `penstock simulate`: gives the rate, "
                      "the lengths, and the hit ratio that the planned prefix caches reach")
          ->type_name("FILE");
  command
      .add_option("--trace-block-tokens", plan.trace_block_tokens,
                  "tokens of a block of the trace [512]")
      ->check(Quiet(CLI::Range(1, 65536)))
      ->needs(trace)
      ->type_name("N");
  command.add_option("--rate", plan.rate, "requests per second [that of the trace, or 1]")
      ->check(Above0())
      ->type_name("X");
  command.add_option("--prompt-tokens", plan.prompt_tokens, "mean prompt length [1024]")
      ->check(Quiet(CLI::Range(1.0, 1e9)))
      ->excludes(trace)
      ->type_name("N");
  command.add_option("--answer-tokens", plan.answer_tokens, "mean answer length [256]")
      ->check(Quiet(CLI::Range(1.0, 1e9)))
      ->excludes(trace)
      ->type_name("N");
  command
      .add_option("--hit-ratio", plan.hit_ratio,
                  "share of prompt tokens that are cached, 0 to 1 [0]")
      ->check(Quiet(CLI::Range(0.0, 1.0)))
      ->excludes(trace)
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
  AddPlanModel(command, plan);
  AddPlanHardware(command, plan);
  AddPlanTraffic(command, plan);
  command.add_option("--plot", plan.plot, "draw the plan")->type_name("FILE.svg");
  command.add_flag("--json", plan.json, "print one JSON object instead of a table");
}

}  // namespace penstock
