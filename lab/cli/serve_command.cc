#include "lab/cli/serve_command.h"

#include <CLI/CLI.hpp>

#include "cli/shell/command_line.h"
#include "cli/shell/validators.h"
#include "lab/cli/commands.h"

namespace penstock {
namespace {

void AddTarget(CLI::App& command, BenchServeOptions& serve) {
  command
      .add_option("--endpoint", serve.endpoint,
                  "OpenAI API as http://HOST:PORT[/PATH], or a router as grpc://HOST:PORT or "
                  "grpcs:// [http://127.0.0.1:8000]")
      ->type_name("URL");
  AddTls(command, serve.tls, "for a grpcs:// endpoint");
  command.add_option("--model", serve.model, "model name; optional if one model is served")
      ->type_name("NAME");
  command.add_option("--api-key", serve.api_key, "API key, sent as a bearer token")
      ->envname("OPENAI_API_KEY")
      ->type_name("KEY");
  command.add_flag("--chat", serve.chat, "send chat completions instead of completions");
  command.add_flag("--text", serve.text,
                   "send prompts of words instead of token ids; chats always do");
  command.add_option("--token-ids", serve.token_ids, "range of token ids in prompts [256:1255]")
      ->type_name("FIRST:LAST");
  command.add_flag("--openai-only", serve.openai_only,
                   "omit ignore_eos and return_token_ids: answers may be short");
  command.add_option("--temperature", serve.temperature, "sampling temperature [0]")
      ->check(Quiet(CLI::Range(0.0, 2.0)))
      ->type_name("X");
  command.add_option("--timeout", serve.timeout_s, "time limit of a request, in seconds [600]")
      ->check(Quiet(CLI::Range(0.001, 86400.0)))
      ->type_name("S");
}

void AddArrivals(CLI::App& command, BenchServeOptions& serve) {
  CLI::Option* rate =
      command.add_option("--rate", serve.rate, "open loop: requests per second, or inf")
          ->check(Quiet(CLI::Range(1e-6, std::numeric_limits<double>::infinity())))
          ->type_name("X");
  command
      .add_option("--burstiness", serve.burstiness,
                  "shape of the gamma-distributed gaps: 1 is Poisson, less is burstier [1]")
      ->check(Quiet(CLI::Range(1e-3, 1e6)))
      ->type_name("X");
  CLI::Option* concurrency =
      command
          .add_option("--concurrency", serve.concurrency, "closed loop with N concurrent requests")
          ->check(Quiet(CLI::Range(1, 100000)))
          ->type_name("N");
  command.add_option("--requests", serve.requests, "number of requests [100, or all of the trace]")
      ->check(Quiet(CLI::Range(1, 100000000)))
      ->type_name("N");
  command.add_option("--duration", serve.duration_s, "stop sending after this many seconds")
      ->check(Quiet(CLI::Range(0.001, 1e7)))
      ->type_name("S");
  command.add_option("--warm-up", serve.warm_up, "requests sent first, which are not measured [0]")
      ->check(Quiet(CLI::Range(0, 100000)))
      ->type_name("N");
  command.add_option("--seed", serve.seed, "seed of arrivals, lengths and prompts [0]")
      ->type_name("N");
  CLI::Option* trace =
      command
          .add_option("--trace", serve.trace,
                      "trace to replay, Mooncake's JSON lines; equal hash ids become equal tokens")
          ->type_name("FILE");
  command.add_option("--trace-speed", serve.trace_speed, "replay speed; 2 is twice as fast [1]")
      ->check(Quiet(CLI::Range(1e-6, 1e9)))
      ->needs(trace)
      ->type_name("X");
  command
      .add_option("--trace-longest", serve.trace_longest,
                  "skip rows with more tokens of prompt and answer together")
      ->check(Quiet(CLI::Range(1, 100000000)))
      ->needs(trace)
      ->type_name("N");
  command
      .add_flag("--trace-ticks", serve.trace_ticks,
                "send rows of one timestamp at once instead of spreading them until the next")
      ->needs(trace);
  rate->excludes(concurrency);
  rate->excludes(trace);
}

void AddWorkload(CLI::App& command, BenchServeOptions& serve) {
  command
      .add_option("--prompt-tokens", serve.prompt_tokens,
                  "prompt tokens beside the shared prefix [256]")
      ->type_name("N|MIN:MAX");
  command.add_option("--output-tokens", serve.output_tokens, "answer tokens [64]")
      ->type_name("N|MIN:MAX");
  command
      .add_option("--shared-prefix", serve.shared_prefix,
                  "tokens of the prefix that prompts share [0]")
      ->check(Quiet(CLI::Range(0, 10000000)))
      ->type_name("N");
  command
      .add_option("--prefixes", serve.prefixes, "number of shared prefixes, chosen at random [1]")
      ->check(Quiet(CLI::Range(1, 1000000)))
      ->type_name("N");
}

}  // namespace

void AddBenchServe(CommandLine& line, CLI::App& bench) {
  auto [command, serve] =
      line.AddTo<BenchServeOptions>(bench, "serve", "put load on a server and measure it");
  command.footer(
      "Without --rate, --concurrency and --trace one request runs at a time. Ctrl-C ends the run "
      "and "
      "reports the requests measured so far.");
  AddTarget(command, serve);
  AddArrivals(command, serve);
  AddWorkload(command, serve);
  command.add_option("--slo", serve.slo, "goodput limits in ms, e.g. ttft:200,tpot:20,e2el:5000")
      ->type_name("NAME:MS,...");
  command.add_flag("--json", serve.json,
                   "print one JSON object with the names of vLLM's bench serve");
  command.add_flag("--detailed", serve.detailed, "add the values of each request to the JSON");
  command.add_option("--output", serve.output, "file that the JSON is written to, too")
      ->type_name("FILE");
  command.add_option("--plot", serve.plot, "draw latencies, and throughput over time")
      ->type_name("FILE.svg");
}

}  // namespace penstock
