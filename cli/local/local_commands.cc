#include <CLI/CLI.hpp>

#include "cli/local/commands.h"
#include "cli/shell/command_line.h"
#include "cli/shell/validators.h"

namespace penstock {
namespace {

void AddProcesses(CLI::App& command, UpOptions& up) {
  const auto workers = Quiet(CLI::Range(1, 64));
  command
      .add_option("--model", up.model,
                  "directory of the checkpoint, or a GGUF file [penstock-tiny]")
      ->type_name("DIR");
  command.add_option("--prefill", up.prefill, "prefill workers, 1 to 64 [1]")
      ->check(workers)
      ->type_name("N");
  command.add_option("--decode", up.decode, "decode workers, 1 to 64 [1]")
      ->check(workers)
      ->type_name("N");
  command.add_option("--port", up.port, "router's gRPC port; 0 takes a free one [8090]")
      ->type_name("N");
  command.add_option("--http-port", up.http_port, "OpenAI API's port; 0 takes a free one [8000]")
      ->type_name("N");
}

void AddWorkers(CLI::App& command, UpOptions& up) {
  command.add_option("--kv-memory", up.kv_memory, "block pool of each worker, e.g. 1GiB [512MiB]")
      ->check(Size())
      ->type_name("SIZE");
  command
      .add_option("--threads", up.threads, "threads of each worker [an equal share of the cores]")
      ->type_name("N");
  command.add_option("--block-tokens", up.block_tokens, "tokens per block [16]")
      ->check(Quiet(CLI::IsMember({16, 32, 64})))
      ->type_name("N");
  command.add_option("--kv-format", up.kv_format, "KV format in memory [bf16]")
      ->check(FormatOfPages())
      ->type_name("NAME");
  command
      .add_option("--lossy-kv", up.lossy_kv,
                  "codecs that requests may ask for: none, near-lossless, all [none]")
      ->type_name("NAMES");
  command.add_option("--wire", up.wire, "lanes allowed [auto]")
      ->check(Quiet(CLI::IsMember({"auto", "tcp", "shm"})))
      ->type_name("NAME");
}

}  // namespace

void AddLocalCommands(CommandLine& line) {
  auto [command, up] = line.Add<UpOptions>("up", "start a local cluster and watch it");
  AddProcesses(command, up);
  AddWorkers(command, up);
  command.add_option("--ask", up.ask, "send this prompt when the cluster is ready")
      ->type_name("PROMPT");
  command.add_option("--once", up.once, "send this prompt, then stop the cluster")
      ->type_name("PROMPT");
  command.add_option("--max-tokens", up.max_tokens, "maximum tokens of that answer [96]")
      ->type_name("N");
  command.add_option("--log-level", up.log_level, "least severe level that is logged [info]")
      ->check(Quiet(CLI::IsMember({"debug", "info", "warning", "error"})))
      ->type_name("NAME");
  command.add_option("--bin-dir", up.binaries, "folder of penstock-router [this program's folder]")
      ->type_name("DIR");
  command.add_flag("--verbose", up.verbose, "show the logs of the started processes");
}

}  // namespace penstock
