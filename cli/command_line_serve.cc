#include "cli/command_line_serve.h"

#include <CLI/CLI.hpp>

#include "cli/command_line_operations.h"
#include "cli/validators.h"

namespace penstock {
namespace {

void AddTarget(CLI::App& command, BenchServeOptions& serve) {
  command
      .add_option("--endpoint", serve.endpoint,
                  "http://HOST:PORT[/PATH] of any OpenAI API, or grpc://HOST:PORT or grpcs:// of a "
                  "router [http://127.0.0.1:8000]")
      ->type_name("URL");
  AddTls(command, serve.tls, "of a grpcs:// endpoint");
  command.add_option("--model", serve.model, "its name; not needed where one model is served")
      ->type_name("NAME");
  command.add_option("--api-key", serve.api_key, "sent as a bearer token [$OPENAI_API_KEY]")
      ->envname("OPENAI_API_KEY")
      ->type_name("KEY");
  command.add_flag("--chat", serve.chat, "chat completions instead of completions");
  command.add_flag("--text", serve.text, "prompts of words instead of token ids, as chats have");
  command.add_option("--token-ids", serve.token_ids, "what prompts are made of [256:1255]")
      ->type_name("FIRST:LAST");
  command.add_flag("--openai-only", serve.openai_only,
                   "sends no ignore_eos and return_token_ids: answers may be short");
  command.add_option("--temperature", serve.temperature, "[0]")
      ->check(Quiet(CLI::Range(0.0, 2.0)))
      ->type_name("X");
  command.add_option("--timeout", serve.timeout_s, "seconds that a request may take [600]")
      ->check(Quiet(CLI::Range(0.001, 86400.0)))
      ->type_name("S");
}

void AddArrivals(CLI::App& command, BenchServeOptions& serve) {
  CLI::Option* rate =
      command
          .add_option("--rate", serve.rate, "requests a second, however slow the answers; or inf")
          ->check(Quiet(CLI::Range(1e-6, std::numeric_limits<double>::infinity())))
          ->type_name("X");
  command
      .add_option("--burstiness", serve.burstiness,
                  "shape of the gamma distributed gaps: 1 is Poisson, less is burstier [1]")
      ->check(Quiet(CLI::Range(1e-3, 1e6)))
      ->type_name("X");
  CLI::Option* concurrency =
      command
          .add_option("--concurrency", serve.concurrency, "so many requests at any time instead")
          ->check(Quiet(CLI::Range(1, 100000)))
          ->type_name("N");
  command.add_option("--requests", serve.requests, "[100, or the trace's, or no limit]")
      ->check(Quiet(CLI::Range(1, 100000000)))
      ->type_name("N");
  command.add_option("--duration", serve.duration_s, "seconds after which none is sent any more")
      ->check(Quiet(CLI::Range(0.001, 1e7)))
      ->type_name("S");
  command.add_option("--warm-up", serve.warm_up, "requests before, that do not count [0]")
      ->check(Quiet(CLI::Range(0, 100000)))
      ->type_name("N");
  command.add_option("--seed", serve.seed, "of arrivals, lengths and prompts [0]")->type_name("N");
  CLI::Option* trace =
      command
          .add_option("--trace", serve.trace,
                      "replays this: Mooncake's JSON lines; equal hash ids are equal tokens")
          ->type_name("FILE");
  command.add_option("--trace-speed", serve.trace_speed, "2 is twice as fast [1]")
      ->check(Quiet(CLI::Range(1e-6, 1e9)))
      ->needs(trace)
      ->type_name("X");
  command
      .add_option("--trace-longest", serve.trace_longest,
                  "leaves out rows with more tokens of prompt and answer")
      ->check(Quiet(CLI::Range(1, 100000000)))
      ->needs(trace)
      ->type_name("N");
  command
      .add_flag("--trace-ticks", serve.trace_ticks,
                "sends rows of one timestamp at once instead of spreading them up to the next")
      ->needs(trace);
  rate->excludes(concurrency);
  rate->excludes(trace);
}

void AddWorkload(CLI::App& command, BenchServeOptions& serve) {
  command.add_option("--prompt-tokens", serve.prompt_tokens, "without what is shared [256]")
      ->type_name("N|LEAST:MOST");
  command.add_option("--output-tokens", serve.output_tokens, "[64]")->type_name("N|LEAST:MOST");
  command.add_option("--shared-prefix", serve.shared_prefix, "tokens in front of every prompt [0]")
      ->check(Quiet(CLI::Range(0, 10000000)))
      ->type_name("N");
  command.add_option("--prefixes", serve.prefixes, "different shared prefixes, at random [1]")
      ->check(Quiet(CLI::Range(1, 1000000)))
      ->type_name("N");
}

}  // namespace

void AddBenchServe(CLI::App& bench, BenchServeOptions& serve) {
  CLI::App& command = *bench.add_subcommand("serve", "puts load on a server, and measures");
  command.footer(
      "Without --rate, --concurrency and --trace one request runs at a time. Ctrl-C ends the run\n"
      "and reports what was measured so far.");
  AddTarget(command, serve);
  AddArrivals(command, serve);
  AddWorkload(command, serve);
  command
      .add_option("--slo", serve.slo,
                  "limits in milliseconds for the goodput: ttft:200,tpot:20,e2el:5000")
      ->type_name("NAME:MS,...");
  command.add_flag("--json", serve.json, "one object, with the names of vLLM's bench serve");
  command.add_flag("--detailed", serve.detailed, "in the JSON also a value for each request");
  command.add_option("--output", serve.output, "writes the JSON there, too")->type_name("FILE");
  command.add_option("--plot", serve.plot, "draws latencies, and throughput over time")
      ->type_name("FILE.svg");
}

}  // namespace penstock
