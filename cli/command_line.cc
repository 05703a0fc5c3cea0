#include "cli/command_line.h"

#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <algorithm>

#include "base/config/config_field.h"
#include "base/rpc/process_info.h"
#include "cli/command_line_codecs.h"
#include "cli/command_line_operations.h"
#include "cli/command_line_placement.h"
#include "cli/command_line_serve.h"
#include "cli/validators.h"

namespace penstock {
namespace {

constexpr char kDescription[] =
    "penstock: serve a language model with prefill and decode on separate workers";
constexpr char kExamples[] =
    "Examples:\n"
    "  penstock up --model models/penstock-tiny\n"
    "  penstock generate --stats \"Once upon a time\"\n"
    "\n"
    "`penstock COMMAND --help`: its options. `penstock completion bash` (or zsh), `--version`.";

// Without the blank lines that hidden options leave at the end.
class HelpFormatter final : public CLI::Formatter {
 public:
  std::string make_help(const CLI::App* app, std::string name,
                        CLI::AppFormatMode mode) const override {
    std::string help = CLI::Formatter::make_help(app, std::move(name), mode);
    while (help.ends_with("\n\n")) help.pop_back();
    return help;
  }
};

// Storage for every command's options while CLI11 fills them.
struct Parsed {
  UpOptions up;
  GenerateOptions generate;
  ChatOptions chat;
  BenchOptions bench;
  BenchServeOptions bench_serve;
  PlanOptions plan;
  TopOptions top;
  TraceOptions trace;
  HealthOptions health;
  KvOptions kv;
  AdminOptions admin;
  CalibrateOptions calibrate;
  EvalOptions eval;
  SimulateCommand simulate;
  ExplainOptions explain;
  CompletionOptions completion;
  ManualOptions manual;
};

// What every command that asks the router has.
template <class Options>
void AddEndpoint(CLI::App& app, Options& options) {
  options.endpoint = "127.0.0.1:8090";
  app.add_option("--endpoint", options.endpoint, "of the router [127.0.0.1:8090]")
      ->envname("PENSTOCK_ENDPOINT")
      ->type_name("HOST:PORT");
  AddTls(app, options.tls, "of an https://HOST:PORT");
  app.add_option("--model", options.model, "its name; not needed where one model is served")
      ->type_name("NAME");
}

void AddSampling(CLI::App& app, SamplingOptions& sampling) {
  app.add_option("--max-tokens", sampling.max_tokens, "longest answer")->type_name("N");
  app.add_option("--temperature", sampling.temperature, "0 is greedy; 0 to 2 [1]")->type_name("X");
  app.add_option("--top-p", sampling.top_p, "nucleus, above 0 to 1 [1]")->type_name("X");
  app.add_option("--top-k", sampling.top_k, "0 is off [0]")->type_name("N");
  app.add_option("--kv-policy", sampling.kv_policy, "exact, near-lossless, or a lossy codec's name")
      ->type_name("POLICY");
  app.add_option("--min-p", sampling.min_p, "0 to below 1 [0]")->type_name("X");
  app.add_option("--seed", sampling.seed, "the same seed gives the same answer")->type_name("N");
  app.add_option("--stop", sampling.stop, "text that ends the answer; may be repeated")
      ->allow_extra_args(false)
      ->type_name("TEXT");
}

CLI::App& AddCommand(CLI::App& app, const std::string& name, const std::string& summary) {
  CLI::App& command = *app.add_subcommand(name, summary);
  command.footer("");
  return command;
}

void AddUp(CLI::App& app, UpOptions& up) {
  CLI::App& command = AddCommand(app, "up", "start a local cluster and watch it");
  const auto workers = Quiet(CLI::Range(1, 64));
  command.add_option("--model", up.model, "directory of the checkpoint [penstock-tiny]")
      ->type_name("DIR");
  command.add_option("--prefill", up.prefill, "prefill workers, 1 to 64 [1]")
      ->check(workers)
      ->type_name("N");
  command.add_option("--decode", up.decode, "decode workers, 1 to 64 [1]")
      ->check(workers)
      ->type_name("N");
  command.add_option("--port", up.port, "of the router's gRPC; 0 takes a free one [8090]")
      ->type_name("N");
  command.add_option("--http-port", up.http_port, "of its OpenAI API; 0 takes a free one [8000]")
      ->type_name("N");
  command.add_option("--kv-memory", up.kv_memory, "block pool of a worker, e.g. 1GiB [512MiB]")
      ->check(Size())
      ->type_name("SIZE");
  command.add_option("--threads", up.threads, "of a worker [the cores, shared out]")
      ->type_name("N");
  command.add_option("--block-tokens", up.block_tokens, "tokens a block [16]")
      ->check(Quiet(CLI::IsMember({16, 32, 64})))
      ->type_name("16|32|64");
  command.add_option("--kv-format", up.kv_format, "of keys and values in pages [bf16]")
      ->check(Quiet(CLI::IsMember({"bf16", "f8", "i8", "i4r", "k8v4"})))
      ->type_name("bf16|f8|i8|i4r|k8v4");
  command
      .add_option("--lossy-kv", up.lossy_kv,
                  "what requests may ask for: none, near-lossless, all, or names [none]")
      ->type_name("CODECS");
  command.add_option("--wire", up.wire, "lanes allowed [auto]")
      ->check(Quiet(CLI::IsMember({"auto", "tcp", "shm"})))
      ->type_name("auto|tcp|shm");
  command.add_option("--ask", up.ask, "ask this once everything is up")->type_name("PROMPT");
  command.add_option("--once", up.once, "ask this, then stop everything")->type_name("PROMPT");
  command.add_option("--max-tokens", up.max_tokens, "longest answer to --ask or --once [96]")
      ->type_name("N");
  command.add_option("--log-level", up.log_level, "debug, info, warning or error [info]")
      ->check(Quiet(CLI::IsMember({"debug", "info", "warning", "error"})))
      ->type_name("LEVEL");
  command.add_option("--bin-dir", up.binaries, "where penstock-router is [beside this program]")
      ->type_name("DIR");
  command.add_flag("--verbose", up.verbose, "show the logs of the started processes");
}

void AddGenerate(CLI::App& app, GenerateOptions& generate) {
  CLI::App& command = AddCommand(app, "generate", "continue a text");
  command.add_option("PROMPT", generate.prompt, "the text; - reads standard input")
      ->required()
      ->type_name("");
  AddEndpoint(command, generate);
  AddSampling(command, generate.sampling);
  command.add_option("-n", generate.choices, "answers, 1 to 16 [1]")->type_name("N");
  command.add_flag("--stats", generate.stats, "how long it took and what moved");
  command.add_flag("--json", generate.json, "one JSON object a line");
}

void AddChat(CLI::App& app, ChatOptions& chat) {
  CLI::App& command = AddCommand(app, "chat", "talk; Ctrl-C stops an answer, twice leaves");
  AddEndpoint(command, chat);
  command.add_option("--system", chat.system, "the system message")->type_name("TEXT");
  AddSampling(command, chat.sampling);
  command.add_flag("--stats", chat.stats, "after each answer, as /stats does");
  command.add_flag("--json", chat.json, "one JSON object a line");
}

CLI::App& AddBench(CLI::App& app, BenchOptions& bench) {
  CLI::App& command =
      AddCommand(app, "bench", "measure this machine, or a server with `bench serve`");
  command.add_option("SUITE", bench.suite, "kernels, transfer, edge, index, cache, store or codec")
      ->check(
          Quiet(CLI::IsMember({"kernels", "transfer", "edge", "index", "cache", "store", "codec"})))
      ->type_name("");
  command.add_option("--threads", bench.threads, "0 takes every core [0]")
      ->check(Quiet(CLI::Range(0, 1024)))
      ->type_name("N");
  command.add_option("--rounds", bench.rounds, "the best of them counts; edge: all of them [3]")
      ->check(Quiet(CLI::Range(1, 100)))
      ->type_name("N");
  command.add_flag("--json", bench.json, "rows as JSON instead of a table");
  command.add_option("--trace", bench.traces, "cache: requests to replay, Mooncake's JSON lines")
      ->type_name("FILE");
  command.add_flag("--partial-blocks", bench.partial_blocks,
                   "cache: keep blocks that are not full, as simulations do and workers do not");
  command
      .add_option("--dir", bench.directory,
                  "store: a directory on the disk to measure, with 6 GiB free [/tmp]")
      ->type_name("DIR");
  command.add_option("--tokens-per-s", bench.tokens_per_s, "edge: of each stream [20]")
      ->check(Quiet(CLI::Range(1.0, 1000.0)))
      ->type_name("RATE");
  command.add_option("--plot", bench.plot, "cache: draws the hit rates")->type_name("FILE.svg");
  command.add_option("--model", bench.model, "codec: whose KV it is [models/penstock-tiny]")
      ->type_name("DIR");
  command.add_option("--isa", bench.isa, "codec: instructions to use [the best there are]")
      ->check(Quiet(CLI::IsMember({"portable", "avx2", "avx512", "avx512_bf16"})))
      ->type_name("portable|avx2|avx512|avx512_bf16");
  command.add_option("--text", bench.text, "codec: what it reads [models/text/held_out.txt]")
      ->type_name("FILE");
  return command;
}

void AddKv(CLI::App& app, KvOptions& kv) {
  CLI::App& command = AddCommand(app, "kv", "look into a worker's cached KV, or empty it");
  command
      .add_option("WHAT", kv.what,
                  "inspect (segments on disk), stats (of all tiers; of a directory, the segments' "
                  "sum), verify (read every block on disk) or flush (forget what nobody needs)")
      ->required()
      ->check(Quiet(CLI::IsMember({"inspect", "stats", "verify", "flush"})))
      ->type_name("");
  command.add_option("WHERE", kv.where, "host:port of a worker, or an nvme_dir")
      ->required()
      ->type_name("");
  AddTls(command, kv.tls, "of the cluster; with --cert and --key");
  command.add_flag("--json", kv.json, "one JSON object");
}

// Neither is in the list of commands, which shall fit a screen.
void AddDescriptions(CLI::App& app, CompletionOptions& completion, ManualOptions& manual) {
  CLI::App& complete =
      AddCommand(app, "completion", "prints what makes a shell complete these commands");
  complete.group("");
  complete.footer(
      "  bash: penstock completion bash > ~/.local/share/bash-completion/completions/penstock\n"
      "  zsh: penstock completion zsh > a folder of $fpath/_penstock");
  complete.add_option("SHELL", completion.shell, "bash or zsh")
      ->required()
      ->check(Quiet(CLI::IsMember({"bash", "zsh"})))
      ->type_name("");
  CLI::App& page = AddCommand(app, "manual", "prints the man page of a program; for builds");
  page.group("");
  page.add_option("PROGRAM", manual.program, "penstock, penstock-router, ...")
      ->required()
      ->type_name("");
}

std::string Spelled(const std::string& argument) { return argument.substr(0, argument.find('=')); }

// Every way to write an option of `app`, or a subcommand.
std::vector<std::string> KnownNames(const CLI::App& app) {
  std::vector<std::string> names;
  for (const CLI::Option* option : app.get_options()) {
    for (const std::string& name : option->get_lnames()) names.push_back("--" + name);
  }
  for (const CLI::App* command : app.get_subcommands({})) names.push_back(command->get_name());
  return names;
}

// The innermost command that was named.
const CLI::App& ChosenCommand(const CLI::App& app) {
  const auto chosen = app.get_subcommands();
  return chosen.empty() ? app : ChosenCommand(*chosen.front());
}

std::string UsageMessage(const CLI::ParseError& error, const CLI::App& app) {
  const bool unknown = dynamic_cast<const CLI::ExtrasError*>(&error) != nullptr ||
                       (app.get_subcommands().empty() && !app.remaining().empty());
  if (!unknown) return error.what();
  const std::vector<std::string> extras = app.remaining(true);
  if (extras.empty()) return error.what();
  const std::string extra = Spelled(extras.front());
  const auto nearest = Nearest(extra, KnownNames(ChosenCommand(app)));
  return fmt::format("{} is unknown{}", extra,
                     nearest ? fmt::format("; did you mean {}?", *nearest) : "");
}

// " bench serve" of `penstock bench serve`.
std::string ScopeOf(const CLI::App& app) {
  const auto chosen = app.get_subcommands();
  if (chosen.empty()) return "";
  return " " + chosen.front()->get_name() + ScopeOf(*chosen.front());
}

ExitCode ReportUsage(const std::string& message, const CLI::App& app) {
  const std::string scope = ScopeOf(app);
  fmt::print(stderr, "penstock{}: {}\nTry `penstock{} --help`.\n", scope, message, scope);
  return ExitCode::kUsage;
}

Command ChosenBench(const CLI::App& app, Parsed& parsed) {
  if (app.get_subcommand("bench")->got_subcommand("serve")) return std::move(parsed.bench_serve);
  if (parsed.bench.suite.empty()) return ReportUsage("SUITE is required", app);
  return std::move(parsed.bench);
}

Command Chosen(const CLI::App& app, Parsed& parsed) {
  if (app.got_subcommand("up")) return std::move(parsed.up);
  if (app.got_subcommand("generate")) return std::move(parsed.generate);
  if (app.got_subcommand("chat")) return std::move(parsed.chat);
  if (app.got_subcommand("bench")) return ChosenBench(app, parsed);
  if (app.got_subcommand("plan")) return std::move(parsed.plan);
  if (app.got_subcommand("top")) return std::move(parsed.top);
  if (app.got_subcommand("trace")) return std::move(parsed.trace);
  if (app.got_subcommand("health")) return std::move(parsed.health);
  if (app.got_subcommand("kv")) return std::move(parsed.kv);
  if (app.got_subcommand("admin")) return std::move(parsed.admin);
  if (app.got_subcommand("calibrate")) return std::move(parsed.calibrate);
  if (app.got_subcommand("eval")) return std::move(parsed.eval);
  if (app.got_subcommand("simulate")) return std::move(parsed.simulate);
  if (app.got_subcommand("explain")) return std::move(parsed.explain);
  if (app.got_subcommand("completion")) return std::move(parsed.completion);
  if (app.got_subcommand("manual")) return std::move(parsed.manual);
  fmt::print(stderr, "{}", app.help());
  return ExitCode::kUsage;
}

// --kv_memory is --kv-memory, in front of '=' and up to a lone "--". Reversed, as CLI11 takes them.
std::vector<std::string> Normalised(int argc, char** argv) {
  std::vector<std::string> arguments(argv + 1, argv + argc);
  for (std::string& argument : arguments) {
    if (argument == "--") break;
    if (!argument.starts_with("--")) continue;
    std::replace(argument.begin(), argument.begin() + static_cast<long>(Spelled(argument).size()),
                 '_', '-');
  }
  std::reverse(arguments.begin(), arguments.end());
  return arguments;
}

// Declares everything. `parsed` outlives the parse.
void Declare(CLI::App& app, Parsed& parsed) {
  app.formatter(std::make_shared<HelpFormatter>());
  app.footer(kExamples);
  app.set_version_flag("--version", fmt::format("penstock {}", ProcessVersion()));
  app.get_formatter()->column_width(30);
  AddUp(app, parsed.up);
  AddGenerate(app, parsed.generate);
  AddChat(app, parsed.chat);
  AddBenchServe(AddBench(app, parsed.bench), parsed.bench_serve);
  AddPlan(app, parsed.plan);
  AddTop(app, parsed.top);
  AddEndpoint(AddTrace(app, parsed.trace), parsed.trace);
  AddHealth(app, parsed.health);
  AddKv(app, parsed.kv);
  AddAdmin(app, parsed.admin);
  AddSimulate(app, parsed.simulate);
  AddEndpoint(AddExplain(app, parsed.explain), parsed.explain);
  AddDescriptions(app, parsed.completion, parsed.manual);
  AddCalibrate(app, parsed.calibrate);
  AddEval(app, parsed.eval);
  // In the footer instead of a section of their own: the help shall fit a screen. Only now, or the
  // commands would inherit it.
  app.get_help_ptr()->group("");
  app.get_version_ptr()->group("");
}

}  // namespace

Program DescribeCommandLine() {
  Parsed parsed;
  CLI::App app(kDescription, "penstock");
  Declare(app, parsed);
  return DescribeApp(app);
}

Command ParseCommandLine(int argc, char** argv) {
  Parsed parsed;
  CLI::App app(kDescription, "penstock");
  Declare(app, parsed);
  try {
    app.parse(Normalised(argc, argv));
  } catch (const CLI::Success& success) {  // --help and --version
    return static_cast<ExitCode>(app.exit(success));
  } catch (const CLI::ParseError& error) {
    return ReportUsage(UsageMessage(error, app), app);
  }
  return Chosen(app, parsed);
}

}  // namespace penstock
