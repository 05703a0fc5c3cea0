#include <signal.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>

#include "base/lifecycle.h"
#include "cli/client/ask.h"
#include "cli/client/client.h"
#include "cli/local/cluster.h"
#include "cli/local/commands.h"
#include "cli/shell/interrupts.h"
#include "cli/shell/progress.h"
#include "model/gguf/model_text.h"

namespace penstock {
namespace {

constexpr char kInstalledModel[] = "../share/penstock/models/penstock-tiny";
constexpr char kSourceModel[] = "../../../models/penstock-tiny";  // of build/PRESET/bin

// The directory of the model that comes with Penstock. NOT_FOUND if this program is neither
// installed nor in the build folder of a source tree.
absl::StatusOr<std::string> BundledModel() {
  std::error_code error;
  const std::filesystem::path folder =
      std::filesystem::read_symlink("/proc/self/exe", error).parent_path();
  for (const char* place : {kInstalledModel, kSourceModel}) {
    const std::filesystem::path model = (folder / place).lexically_normal();
    if (std::filesystem::exists(model / "config.json", error)) return model.string();
  }
  return NotFound("there is no bundled model at {}: name a Hugging Face checkpoint with --model",
                  (folder / kInstalledModel).lexically_normal().string());
}

// A GGUF file that cannot be served is refused before anything starts.
absl::Status CheckModel(const std::string& model) {
  const absl::Status exists = CheckModelExists(model);
  if (!exists.ok()) return absl::Status(exists.code(), "--" + Message(exists));
  absl::Status config = ReadModelText(model, "config.json").status();
  if (!absl::IsNotFound(config)) return config;
  return NotFound(
      "--model={}: it has no config.json; name a Hugging Face checkpoint or a GGUF file", model);
}

int Fail(const absl::Status& status, ExitCode code) {
  fmt::print(stderr, "penstock up: {}\n", Message(status));
  return static_cast<int>(code);
}

// The exit code of a failed start: the child's own code where it says more than "failed".
int StartFailed(const absl::Status& status, const Cluster& cluster) {
  if (cluster.signal() != 0) return 128 + cluster.signal();
  Fail(status, ExitCode::kFailure);
  if (absl::IsNotFound(status)) return static_cast<int>(ExitCode::kNoInput);
  const int code = cluster.child_exit_code().value_or(1);
  const bool says_more = code >= static_cast<int>(ExitCode::kBadData) &&
                         code <= static_cast<int>(ExitCode::kBadConfig);
  return says_more ? code : static_cast<int>(ExitCode::kFailure);
}

Asked AskCluster(const Cluster& cluster, const UpOptions& options, const std::string& prompt,
                 Interrupts& interrupts) {
  v1::GenerateRequest request;
  v1::Message* message = request.mutable_chat()->add_messages();
  message->set_role("user");
  message->add_content()->set_text(prompt);
  // As people talk to a model, but the same answer every time.
  SetSampling({.max_tokens = options.max_tokens, .temperature = 0.7f, .top_p = 0.95f, .seed = 1},
              request);
  InferenceClient client({.endpoint = cluster.endpoint()});
  fmt::print(stderr, "\n> {}\n", prompt);
  return Ask(client, interrupts, std::move(request), {.json = false, .stats = true});
}

// How the person at the terminal would start this program again.
std::string OwnCommand() {
  std::error_code error;
  const std::filesystem::path program = std::filesystem::read_symlink("/proc/self/exe", error);
  const char* search = std::getenv("PATH");  // NOLINT(concurrency-mt-unsafe)
  const std::string folders = fmt::format(":{}:", search == nullptr ? "" : search);
  if (folders.find(fmt::format(":{}:", program.parent_path().string())) != std::string::npos) {
    return program.filename().string();
  }
  const std::string near = std::filesystem::proximate(program, error).string();
  return near.size() < program.string().size() ? near : program.string();
}

void PrintEndpoints(const Cluster& cluster, const std::string& model) {
  const std::string name = DefaultModelName(model);
  fmt::print("\n  {:<12}{}  gRPC penstock.v1.Inference, model {}\n", "endpoint", cluster.endpoint(),
             name);
  if (const std::string http = cluster.http_endpoint(); !http.empty()) {
    fmt::print("  {:<12}http://{}/v1  OpenAI-compatible\n", "http", http);
    fmt::print("  {:<12}http://{}/  chat, and a picture of the cluster\n", "page", http);
  }
  if (const std::string admin = cluster.admin_endpoint(); !admin.empty()) {
    fmt::print("  {:<12}{}  for penstock admin --endpoint\n", "admin", admin);
  }
  const auto print_process = [&](const std::string& process, const std::string& endpoint) {
    fmt::print("  {:<12}{:<21}  pid {}, metrics http://{}/metrics\n", process, endpoint,
               cluster.pid(process), cluster.metrics_endpoint(process));
  };
  print_process("router", cluster.endpoint());
  for (const auto& [worker, endpoint] : cluster.workers()) print_process(worker, endpoint);
  fmt::print("  {:<12}{}\n", "logs", cluster.folder());
}

void PrintNextSteps(const Cluster& cluster) {
  const std::string flag = cluster.endpoint() == "127.0.0.1:8090"
                               ? ""
                               : fmt::format(" --endpoint {}", cluster.endpoint());
  fmt::print(
      "\nTry next, in another terminal:\n"
      "  {0} generate{1} --stats \"The sea was calm\"\n"
      "  {0} chat{1}\n"
      "  {0} generate{1} --json -n 2 --seed 7 \"Once upon a time\"\n",
      OwnCommand(), flag);
  if (const std::string http = cluster.http_endpoint(); !http.empty()) {
    fmt::print(
        "  curl -N http://{}/v1/chat/completions -H 'Content-Type: application/json' \\\n"
        "    -d '{{\"messages\": [{{\"role\": \"user\", \"content\": \"What is a river?\"}}], "
        "\"stream\": true}}'\n",
        http);
  }
  if (const std::string admin = cluster.admin_endpoint(); !admin.empty()) {
    fmt::print("  {} top --endpoint {}\n", OwnCommand(), admin);
  }
  fmt::print("  kill -9 {}    ends {}: an answer that streams continues after a short pause\n",
             cluster.pid(cluster.workers().back().first), cluster.workers().back().first);
  fmt::print("Ctrl-C stops everything.\n");
  fflush(stdout);
}

int WatchUntilEnd(Cluster& cluster) {
  absl::Status status;
  while (status.ok()) status = cluster.Watch();
  if (cluster.signal() == 0) return Fail(status, ExitCode::kFailure);
  cluster.Stop();
  fmt::print(stderr, "everything is stopped\n");
  // Being told to stop is the way this command ends well; 128 + n all the same, as shells expect.
  return 128 + cluster.signal();
}

int RunWithModel(const UpOptions& options) {
  if (const absl::Status model = CheckModel(options.model); !model.ok()) {
    return Fail(model, absl::IsNotFound(model) ? ExitCode::kNoInput : ExitCode::kBadData);
  }
  Interrupts interrupts({SIGINT, SIGTERM, SIGHUP, SIGCHLD});
  Progress progress;
  Cluster cluster(options, interrupts, progress);
  const absl::Status started = cluster.Start();
  if (!started.ok()) return StartFailed(started, cluster);
  const std::string& prompt = options.once.empty() ? options.ask : options.once;
  if (!prompt.empty()) {
    const Asked asked = AskCluster(cluster, options, prompt, interrupts);
    if (asked.signal == SIGCHLD) return WatchUntilEnd(cluster);
    if (!options.once.empty() || asked.exit_code() != 0) return asked.exit_code();
  }
  PrintEndpoints(cluster, options.model);
  PrintNextSteps(cluster);
  return WatchUntilEnd(cluster);
}

}  // namespace

int Run(const UpOptions& options) {
  if (!options.model.empty()) return RunWithModel(options);
  const absl::StatusOr<std::string> model = BundledModel();
  if (!model.ok()) return Fail(model.status(), ExitCode::kNoInput);
  UpOptions bundled = options;
  bundled.model = *model;
  return RunWithModel(bundled);
}

}  // namespace penstock
