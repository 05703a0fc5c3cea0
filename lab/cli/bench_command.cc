#include <CLI/CLI.hpp>

#include "cli/shell/command_line.h"
#include "cli/shell/lab_commands.h"
#include "cli/shell/validators.h"
#include "lab/cli/commands.h"
#include "lab/cli/serve_command.h"

namespace penstock {

void AddBench(CommandLine& line) {
  auto [command, bench] =
      line.Add<BenchOptions>(std::string(kBenchCommand.name), std::string(kBenchCommand.summary));
  command
      .add_option("SUITE", bench.suite,
                  "suite: kernels, model, transfer, edge, index, cache, store, codec, structured, "
                  "speculative or kv-policy")
      ->check(Quiet(CLI::IsMember({"kernels", "model", "transfer", "edge", "index", "cache",
                                   "store", "codec", "structured", "speculative", "kv-policy"})))
      ->type_name("");
  command.add_option("--threads", bench.threads, "threads; 0 takes every core [0]")
      ->check(Quiet(CLI::Range(0, 1024)))
      ->type_name("N");
  command
      .add_option("--rounds", bench.rounds,
                  "rounds, of which the best counts; model: the median; edge: all count [3]")
      ->check(Quiet(CLI::Range(1, 100)))
      ->type_name("N");
  command.add_flag("--json", bench.json, "print rows as JSON instead of a table");
  command.add_option("--trace", bench.traces, "cache: trace to replay, Mooncake's JSON lines")
      ->type_name("FILE");
  command
      .add_option("--block-tokens", bench.block_tokens,
                  "cache: tokens that one id of the trace stands for [512]")
      ->check(Quiet(CLI::Range(1, 1 << 20)))
      ->type_name("N");
  command.add_flag("--partial-blocks", bench.partial_blocks,
                   "cache: also keep partial blocks, which simulations do and workers do not");
  command
      .add_option("--dir", bench.directory,
                  "store, kv-policy: directory on the disk to measure, with 6 GiB free [/tmp]")
      ->type_name("DIR");
  command
      .add_option("--tokens-per-s", bench.tokens_per_s,
                  "edge: tokens per second of each stream [20]")
      ->check(Quiet(CLI::Range(1.0, 1000.0)))
      ->type_name("RATE");
  command.add_option("--plot", bench.plot, "cache: draw the hit rates")->type_name("FILE.svg");
  command
      .add_option("--model", bench.model,
                  "model: checkpoint or GGUF file; codec, structured, speculative: checkpoint "
                  "[models/penstock-tiny]")
      ->type_name("PATH");
  command
      .add_option("--vocabulary", bench.vocabulary,
                  "structured: tokens of a synthetic vocabulary, with random weights of the 1.1B "
                  "shape; 0 measures --model [128256]")
      ->check(Quiet(CLI::Range(0, 1 << 20)))
      ->type_name("N");
  command.add_option("--isa", bench.isa, "codec: instruction set [the best that this machine has]")
      ->check(Quiet(CLI::IsMember({"portable", "avx2", "avx512", "avx512_bf16"})))
      ->type_name("NAME");
  command
      .add_option("--text", bench.text,
                  "codec, speculative: text to prefill [models/text/held_out.txt]")
      ->type_name("FILE");
  AddBenchServe(line, command);
}

}  // namespace penstock
