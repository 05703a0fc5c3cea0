#include <CLI/CLI.hpp>

#include "cli/client/commands.h"
#include "cli/shell/command_line.h"

namespace penstock {
namespace {

// The options of every command that calls the router.
template <class Options>
void AddEndpoint(CLI::App& app, Options& options) {
  RouterOptions& router = options.router;
  app.add_option("--endpoint", router.endpoint, "router's gRPC address [127.0.0.1:8090]")
      ->envname("PENSTOCK_ENDPOINT")
      ->type_name("HOST:PORT");
  AddTls(app, router.tls, "for an https://HOST:PORT endpoint");
  // A key on a command line is seen by all users of the machine, one in the environment is not.
  app.add_option("--api-key", router.api_key, "API key; better given as PENSTOCK_API_KEY")
      ->envname("PENSTOCK_API_KEY")
      ->type_name("KEY");
  app.add_option("--model", options.model, "model name; optional if one model is served")
      ->type_name("NAME");
}

void AddMaxTokens(CLI::App& app, SamplingOptions& sampling) {
  app.add_option("--max-tokens", sampling.max_tokens, "maximum tokens of the answer")
      ->type_name("N");
}

void AddKvPolicy(CLI::App& app, KvPolicyOptions& kv) {
  app.add_option("--kv-policy", kv.policy,
                 "exact, near-lossless, the name of a lossy codec, an eviction such as snapkv:256, "
                 "or a selection such as quest:1024")
      ->type_name("POLICY");
}

void AddKeepMarker(CLI::App& app, KvPolicyOptions& kv) {
  app.add_option("--keep-marker", kv.keep_marker,
                 "text between two of these is always kept by an eviction; they are removed")
      ->type_name("TEXT");
}

void AddSampling(CLI::App& app, SamplingOptions& sampling) {
  AddMaxTokens(app, sampling);
  app.add_option("--temperature", sampling.temperature, "0 (greedy) to 2 [1]")->type_name("X");
  app.add_option("--top-p", sampling.top_p, "nucleus sampling, above 0 to 1 [1]")->type_name("X");
  app.add_option("--top-k", sampling.top_k, "sample from the K likeliest tokens; 0 is off [0]")
      ->type_name("K");
  AddKvPolicy(app, sampling.kv);
  app.add_option("--min-p", sampling.min_p, "minimum probability, 0 to below 1 [0]")
      ->type_name("X");
  app.add_option("--seed", sampling.seed, "seed; the same seed gives the same answer")
      ->type_name("N");
  app.add_option("--stop", sampling.stop, "text that ends the answer; may be repeated")
      ->allow_extra_args(false)
      ->type_name("TEXT");
}

void AddGenerate(CommandLine& line) {
  auto [command, generate] = line.Add<GenerateOptions>("generate", "continue a text");
  command.add_option("PROMPT", generate.prompt, "text to continue; - reads standard input")
      ->required()
      ->type_name("");
  AddEndpoint(command, generate);
  AddSampling(command, generate.sampling);
  AddKeepMarker(command, generate.sampling.kv);
  command.add_option("-n", generate.choices, "number of answers, 1 to 16 [1]")->type_name("N");
  command.add_flag("--stats", generate.stats, "print latencies and the KV that was transferred");
  command.add_flag("--json", generate.json, "print one JSON object a line");
}

void AddChat(CommandLine& line) {
  auto [command, chat] =
      line.Add<ChatOptions>("chat", "interactive chat (Ctrl-C stops the answer; twice quits)");
  AddEndpoint(command, chat);
  command.add_option("--system", chat.system, "system message")->type_name("TEXT");
  AddSampling(command, chat.sampling);
  command.add_flag("--stats", chat.stats, "print latencies after each answer, as /stats does");
  command.add_flag("--json", chat.json, "print one JSON object a line");
}

void AddTrace(CommandLine& line) {
  auto [command, trace] =
      line.Add<TraceOptions>("trace", "show where the time of one request goes");
  command.add_option("PROMPT", trace.prompt, "text to continue")->required()->type_name("");
  AddMaxTokens(command, trace.sampling);
  command.add_flag("--json", trace.json,
                   "print the answer's last message, with all times, as JSON");
  AddEndpoint(command, trace);
}

void AddExplain(CommandLine& line) {
  auto [command, explain] = line.Add<ExplainOptions>(
      "explain", "show why the router places a prompt where it does (computes an answer)");
  command.footer(
      "Columns, in ms unless named otherwise. A lower cost wins.\n"
      "  cached    prompt tokens that the prefill worker has cached\n"
      "  p(hit)    probability that those tokens are still cached, 0 to 1\n"
      "  queue     wait for the prompts in front of it; prefill: computing the rest\n"
      "  restore   reading cached KV from lower tiers; fetch: from another worker's store\n"
      "  transfer  KV handoff that prefill does not hide; decode: the first decode step\n"
      "  queueing  delay that this prompt adds to prompts queued behind it\n"
      "  balance   penalty for a worker with more work than the others\n"
      "  interference  slowdown of the sequences that already decode on the decode worker");
  command.add_option("PROMPT", explain.prompt, "text to place")->required()->type_name("");
  command.add_option("--max-tokens", explain.max_tokens, "maximum tokens of the answer [1]")
      ->type_name("N");
  AddKvPolicy(command, explain.kv);
  AddKeepMarker(command, explain.kv);
  command.add_flag("--json", explain.json, "print the explanation as JSON");
  AddEndpoint(command, explain);
}

}  // namespace

void AddClientCommands(CommandLine& line) {
  AddGenerate(line);
  AddChat(line);
  AddTrace(line);
  AddExplain(line);
}

}  // namespace penstock
