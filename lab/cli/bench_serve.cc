#include <fmt/chrono.h>
#include <fmt/format.h>
#include <signal.h>

#include <charconv>
#include <cmath>
#include <ctime>
#include <fstream>
#include <optional>

#include "base/lifecycle.h"
#include "cli/shell/connect.h"
#include "cli/shell/interrupts.h"
#include "cli/shell/progress.h"
#include "lab/cli/commands.h"
#include "lab/load/grpc_target.h"
#include "lab/load/load_run.h"
#include "lab/load/report.h"
#include "lab/load/summary.h"
#include "lab/load/target.h"

namespace penstock {
namespace {

constexpr uint32_t kRequests = 100;
constexpr uint32_t kMaxTokens = 10'000'000;
constexpr int kBarWidth = 24;
// Warm-up prompts come from elsewhere, so that none of the measured ones is cached by them.
constexpr uint64_t kWarmUpSeed = 0x77617268;

int Failed(const absl::Status& status) {
  fmt::print(stderr, "penstock bench serve: {}\n", Message(status));
  return static_cast<int>(ExitCodeFor(status));
}

absl::StatusOr<TokenRange> ParseRange(const std::string& option, const std::string& text) {
  TokenRange range;
  const size_t colon = text.find(':');
  const auto read = [&](std::string_view part, uint32_t& value) {
    const auto [end, error] = std::from_chars(part.data(), part.data() + part.size(), value);
    return error == std::errc() && end == part.data() + part.size();
  };
  const std::string_view first = std::string_view(text).substr(0, colon);
  const std::string_view last =
      colon == std::string::npos ? first : std::string_view(text).substr(colon + 1);
  if (!read(first, range.min) || !read(last, range.max) || range.min > range.max ||
      range.max > kMaxTokens) {
    return InvalidArgument("{}={} must be a number up to {}, or MIN:MAX", option, text, kMaxTokens);
  }
  return range;
}

absl::StatusOr<TokenRange> ParseLengths(const std::string& option, const std::string& text) {
  ASSIGN_OR_RETURN(const TokenRange range, ParseRange(option, text));
  if (range.min == 0) return InvalidArgument("{}={}: at least 1 token is needed", option, text);
  return range;
}

struct Endpoint {
  bool grpc = false;
  bool tls = false;
  std::string host;
  uint16_t port = 0;
  std::string path;
};

absl::StatusOr<Endpoint> ParseEndpoint(const std::string& text) {
  Endpoint endpoint;
  std::string_view rest = text;
  const size_t scheme_end = rest.find("://");
  const std::string scheme(scheme_end == std::string_view::npos ? "http"
                                                                : rest.substr(0, scheme_end));
  if (scheme_end != std::string_view::npos) rest.remove_prefix(scheme_end + 3);
  if (scheme == "https") {
    return InvalidArgument(
        "--endpoint={}: this command speaks no TLS over HTTP: name the plain port behind what ends "
        "TLS, or a local one that `stunnel` or `kubectl port-forward` opens",
        text);
  }
  if (scheme != "http" && scheme != "grpc" && scheme != "grpcs") {
    return InvalidArgument("--endpoint={} must begin with http://, grpc:// or grpcs://", text);
  }
  endpoint.grpc = scheme != "http";
  endpoint.tls = scheme == "grpcs";
  const size_t slash = rest.find('/');
  if (slash != std::string_view::npos) endpoint.path = rest.substr(slash);
  // OPENAI_BASE_URL, which users copy, ends in /v1.
  while (endpoint.path.ends_with('/')) endpoint.path.pop_back();
  if (endpoint.path.ends_with("/v1")) endpoint.path.resize(endpoint.path.size() - 3);
  std::string address(rest.substr(0, slash));
  if (!endpoint.grpc && address.find(':') == std::string::npos) address += ":80";
  const auto parsed = ParseHostPort(address);
  if (!parsed.ok()) return Annotate(parsed.status(), fmt::format("--endpoint={}", text));
  endpoint.host = parsed->host;
  endpoint.port = parsed->port;
  return endpoint;
}

absl::StatusOr<TargetOptions> TargetOf(const BenchServeOptions& options, const Endpoint& endpoint) {
  ASSIGN_OR_RETURN(const TokenRange ids, ParseRange("--token-ids", options.token_ids));
  for (const char c : options.api_key + endpoint.path) {
    if (c <= ' ' || c > '~') return InvalidArgument("--api-key or --endpoint holds a space");
  }
  return TargetOptions{.host = endpoint.host,
                       .port = endpoint.port,
                       .path = endpoint.path,
                       .api_key = options.api_key,
                       .chat = options.chat,
                       .text = options.text,
                       .openai_only = options.openai_only,
                       .temperature = options.temperature,
                       .timeout = Duration(static_cast<int64_t>(options.timeout_s * 1e9)),
                       .alphabet = {options.seed, ids.min, ids.max}};
}

absl::StatusOr<SyntheticLoad> SyntheticOf(const BenchServeOptions& options) {
  SyntheticLoad load{.shared_tokens = options.shared_prefix,
                     .prefixes = options.prefixes,
                     .rate = options.rate,
                     .burstiness = options.burstiness,
                     .seed = options.seed};
  load.requests = options.requests;
  if (load.requests == 0 && options.duration_s == 0) load.requests = kRequests;
  ASSIGN_OR_RETURN(load.prompt_tokens, ParseLengths("--prompt-tokens", options.prompt_tokens));
  ASSIGN_OR_RETURN(load.output_tokens, ParseLengths("--output-tokens", options.output_tokens));
  if (std::isinf(options.rate) && load.requests == 0) {
    return InvalidArgument("--rate=inf sends all at once: say how many with --requests");
  }
  return load;
}

struct Workload {
  std::unique_ptr<RequestSource> source;
  uint32_t requests = 0;  // 0: not known
  std::string description;
};

std::string RangeText(const TokenRange& range) {
  return range.min == range.max ? fmt::format("{}", range.min)
                                : fmt::format("{}:{}", range.min, range.max);
}

absl::StatusOr<Workload> WorkloadOf(const BenchServeOptions& options, Progress& progress) {
  if (options.trace.empty()) {
    ASSIGN_OR_RETURN(const SyntheticLoad load, SyntheticOf(options));
    return Workload{.source = MakeSyntheticSource(load),
                    .requests = load.requests,
                    .description = fmt::format(
                        "{} + {} prompt tokens, {} output tokens, {} prefixes", load.shared_tokens,
                        RangeText(load.prompt_tokens), RangeText(load.output_tokens),
                        load.shared_tokens == 0 ? 0 : load.prefixes)};
  }
  ASSIGN_OR_RETURN(LoadedTrace trace, LoadRequestTrace({.path = options.trace,
                                                        .speed = options.trace_speed,
                                                        .longest = options.trace_longest,
                                                        .requests = options.requests,
                                                        .spread = !options.trace_ticks}));
  progress.Line(fmt::format("{}: {} requests of {}-token blocks over {:.1f} s, {} left out",
                            options.trace, trace.requests.size(), trace.block_tokens,
                            trace.requests.back().at_s, trace.left_out));
  Workload workload{
      .requests = static_cast<uint32_t>(trace.requests.size()),
      .description = fmt::format("trace {} at speed {:g}", options.trace, options.trace_speed)};
  workload.source = MakeListSource(std::move(trace.requests));
  return workload;
}

absl::StatusOr<std::unique_ptr<LoadTarget>> ConnectTarget(const BenchServeOptions& options,
                                                          const Endpoint& endpoint) {
  ASSIGN_OR_RETURN(const TargetOptions target, TargetOf(options, endpoint));
  if (!endpoint.grpc) return ConnectOpenAi(target);
  const std::string address = (endpoint.tls ? "https://" : "http://") +
                              FormatHostPort({.host = endpoint.host, .port = endpoint.port});
  std::vector<std::shared_ptr<grpc::Channel>> channels(kLoadChannels);
  for (auto& channel : channels) {
    ASSIGN_OR_RETURN(
        channel, penstock::Connect(address, options.tls, Called::kHost, LoadChannelArguments()));
  }
  return ConnectGrpc(target, std::move(channels));
}

std::string Bar(double share) {
  const int filled = static_cast<int>(std::min(share, 1.0) * kBarWidth);
  return fmt::format("[{:<{}}]", std::string(static_cast<size_t>(filled), '#'), kBarWidth);
}

// One line that is redrawn; nothing where standard error is no terminal.
LoadRun::OnProgress Show(Progress& progress, const std::string& what, uint32_t requests,
                         double duration_s) {
  return [&progress, what, requests, duration_s](const LoadProgress& now) {
    if (!progress.terminal()) return;
    const uint32_t ended = now.good + now.failed + now.unfinished;
    const double by_count = requests == 0 ? 0 : static_cast<double>(ended) / requests;
    const double by_time = duration_s == 0 ? 0 : now.seconds / duration_s;
    progress.Status(fmt::format("{} {} {}{} done, {} running, {} failed, {:.1f}/s", what,
                                Bar(std::max(by_count, by_time)), ended,
                                requests == 0 ? "" : fmt::format("/{}", requests), now.running(),
                                now.failed, ended / std::max(now.seconds, 1e-3)));
  };
}

// Runs until its end or a signal, whose number goes to `signal`.
LoadOutcome RunUntilSignal(LoadRun& run, Interrupts& interrupts, const LoadRun::OnProgress& show,
                           int& signal) {
  OnInterrupt watch(interrupts, [&run] { run.Stop(); });
  LoadOutcome outcome = run.Run(show);
  signal = watch.Finish();
  return outcome;
}

absl::Status WarmUp(LoadTarget& target, const BenchServeOptions& options, Interrupts& interrupts,
                    Progress& progress, int& signal) {
  if (options.warm_up == 0) return absl::OkStatus();
  SyntheticLoad load{.requests = options.warm_up, .seed = options.seed ^ kWarmUpSeed};
  if (options.trace.empty()) {
    ASSIGN_OR_RETURN(const SyntheticLoad like, SyntheticOf(options));
    load.prompt_tokens = like.prompt_tokens;
    load.output_tokens = like.output_tokens;
  }
  std::deque<LoadRequest> requests;
  const auto source = MakeSyntheticSource(load);
  while (auto request = source->Next()) {
    for (PromptPiece& piece : request->prompt) piece.id ^= kWarmUpSeed;
    requests.push_back(*std::move(request));
  }
  const auto list = MakeListSource(std::move(requests));
  LoadRun run(target, *list, {.concurrency = std::max(options.concurrency, 1u)});
  const LoadOutcome outcome =
      RunUntilSignal(run, interrupts, Show(progress, "warm-up", options.warm_up, 0), signal);
  const LoadSummary summary = Summarise(outcome, {});
  progress.Status("");
  if (summary.failed == 0) return absl::OkStatus();
  const auto& [kind, error] = *summary.errors.begin();
  return Unavailable("{} of {} requests of the warm-up failed: {}: {}", summary.failed,
                     options.warm_up, kind, error.example);
}

LoadDescription Describe(const BenchServeOptions& options, const Endpoint& endpoint,
                         const std::string& model, const Workload& workload, const LoadPlan& plan) {
  const std::time_t now = std::time(nullptr);
  return {.backend = endpoint.grpc  ? "penstock-grpc"
                     : options.chat ? "openai-chat"
                                    : "openai",
          .model = model,
          .date = fmt::format("{:%Y%m%d-%H%M%S}", fmt::gmtime(now)),
          .workload = workload.description,
          .rate = options.rate,
          .burstiness = options.burstiness,
          .concurrency = plan.concurrency};
}

absl::Status Write(const BenchServeOptions& options, const LoadDescription& description,
                   const LoadOutcome& outcome, const LoadSummary& summary) {
  const std::string json = LoadJson(description, outcome, summary, options.detailed);
  fmt::print("{}", options.json ? json + "\n" : LoadText(summary));
  if (!options.output.empty()) {
    std::ofstream file(options.output);
    file << json << '\n';
    file.close();
    if (!file) return FailedPrecondition("cannot write --output={}", options.output);
  }
  if (options.plot.empty()) return absl::OkStatus();
  return WriteLoadPlot(description, outcome, options.plot);
}

absl::StatusOr<int> Serve(const BenchServeOptions& options) {
  ASSIGN_OR_RETURN(const Endpoint endpoint, ParseEndpoint(options.endpoint));
  ASSIGN_OR_RETURN(const LoadSlo slo, ParseLoadSlo(options.slo));
  Progress progress;
  ASSIGN_OR_RETURN(const Workload workload, WorkloadOf(options, progress));
  ASSIGN_OR_RETURN(const std::unique_ptr<LoadTarget> target, ConnectTarget(options, endpoint));
  std::string model = options.model;
  if (model.empty()) {
    ASSIGN_OR_RETURN(model, target->FindModel());
  }
  target->SetModel(model);
  Interrupts interrupts({SIGINT, SIGTERM});
  int signal = 0;
  RETURN_IF_ERROR(WarmUp(*target, options, interrupts, progress, signal));
  if (signal != 0) return 128 + signal;
  LoadPlan plan{.concurrency = options.concurrency, .duration_s = options.duration_s};
  if (plan.concurrency == 0 && options.rate == 0 && options.trace.empty()) plan.concurrency = 1;
  progress.Line(fmt::format("{} at {}: {}", model, options.endpoint, workload.description));
  LoadRun run(*target, *workload.source, plan);
  const LoadOutcome outcome = RunUntilSignal(
      run, interrupts, Show(progress, "load", workload.requests, options.duration_s), signal);
  progress.Status("");
  LoadDescription description = Describe(options, endpoint, model, workload, plan);
  description.prompts = static_cast<uint32_t>(outcome.records.size());
  const LoadSummary summary = Summarise(outcome, slo);
  RETURN_IF_ERROR(Write(options, description, outcome, summary));
  if (signal != 0) return 128 + signal;
  return static_cast<int>(summary.completed > 0 ? ExitCode::kOk : ExitCode::kFailure);
}

}  // namespace

int Run(const BenchServeOptions& options) {
  const absl::StatusOr<int> code = Serve(options);
  return code.ok() ? *code : Failed(code.status());
}

}  // namespace penstock
