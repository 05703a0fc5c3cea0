#include "cli/local/cluster.h"

#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <filesystem>
#include <fstream>
#include <thread>

#include "base/check.h"
#include "base/lifecycle.h"
#include "cli/client/client.h"
#include "cli/shell/interrupts.h"
#include "cli/shell/progress.h"

namespace penstock {
namespace {

using std::chrono::milliseconds;
using SteadyTime = std::chrono::steady_clock;

constexpr milliseconds kTick{50};
constexpr std::chrono::seconds kStartLimit{300};
constexpr std::chrono::seconds kStopLimit{10};
constexpr size_t kLastLines = 12;
// A worker that ends more often is broken, and starting it again helps nobody.
constexpr size_t kRestartsMax = 3;
constexpr std::chrono::minutes kRestartsPeriod{1};

std::string OwnFolder() {
  std::error_code error;
  return std::filesystem::read_symlink("/proc/self/exe", error).parent_path().string();
}

uint32_t ThreadsOfAWorker(const UpOptions& options) {
  if (options.threads) return *options.threads;
  // Processes that wait for each other's time slices are slower than fewer threads.
  const uint32_t cores = std::max(1u, std::thread::hardware_concurrency());
  return std::max(1u, cores / (options.prefill + options.decode));
}

uint16_t HttpPort(const UpOptions& options) {
  constexpr uint16_t kUsual = 8000;
  return options.http_port.value_or(options.port == 0 ? 0 : kUsual);
}

std::string SecondsSince(SteadyTime::time_point start) {
  return fmt::format("{:.1f} s", std::chrono::duration<double>(SteadyTime::now() - start).count());
}

}  // namespace

Cluster::Cluster(const UpOptions& options, Interrupts& interrupts, Progress& progress)
    : options_(options), interrupts_(interrupts), progress_(progress) {}

Cluster::~Cluster() { Stop(); }

absl::Status Cluster::Start() {
  ASSIGN_OR_RETURN(TemporaryFolder folder, TemporaryFolder::Create());
  folder_.emplace(std::move(folder));
  RETURN_IF_ERROR(StartWorkers());
  RETURN_IF_ERROR(StartRouter());
  serving_ = true;
  return absl::OkStatus();
}

ProcessSpec Cluster::WorkerSpec(const std::string& role, uint32_t index) const {
  const std::string binaries = options_.binaries.empty() ? OwnFolder() : options_.binaries;
  const std::string name = fmt::format("{}-{}", role, index);
  std::vector<std::string> arguments = {
      fmt::format("{}/penstock-{}", binaries, role),
      "--listen=127.0.0.1:0",
      fmt::format("--model={}", options_.model),
      fmt::format("--worker_id={}", name),
      fmt::format("--threads={}", ThreadsOfAWorker(options_)),
      fmt::format("--ready_file={}/{}.ready", folder_->path(), name),
      fmt::format("--log_level={}", options_.log_level)};
  if (!options_.kv_memory.empty()) {
    arguments.push_back(fmt::format("--kv_memory={}", options_.kv_memory));
  }
  if (options_.block_tokens) {
    arguments.push_back(fmt::format("--block_tokens={}", *options_.block_tokens));
  }
  if (!options_.kv_format.empty()) {
    arguments.push_back(fmt::format("--kv_format={}", options_.kv_format));
  }
  if (!options_.lossy_kv.empty()) {
    arguments.push_back(fmt::format("--lossy_kv={}", options_.lossy_kv));
  }
  if (!options_.wire.empty()) arguments.push_back(fmt::format("--wire={}", options_.wire));
  return {.name = name,
          .arguments = std::move(arguments),
          .log = fmt::format("{}/{}.log", folder_->path(), name)};
}

ProcessSpec Cluster::RouterSpec() const {
  const std::string binaries = options_.binaries.empty() ? OwnFolder() : options_.binaries;
  std::vector<std::string> endpoints;
  for (const auto& [name, endpoint] : workers_) endpoints.push_back(endpoint);
  return {.name = "router",
          .arguments = {fmt::format("{}/penstock-router", binaries),
                        fmt::format("--listen=127.0.0.1:{}", options_.port),
                        fmt::format("--http_listen=127.0.0.1:{}", HttpPort(options_)),
                        "--admin_listen=127.0.0.1:0", fmt::format("--model={}", options_.model),
                        fmt::format("--workers={}", fmt::join(endpoints, ",")),
                        fmt::format("--ready_file={}/router.ready", folder_->path()),
                        fmt::format("--log_level={}", options_.log_level)},
          .log = fmt::format("{}/router.log", folder_->path())};
}

absl::Status Cluster::StartWorkers() {
  const auto start = SteadyTime::now();
  for (const auto& [role, count] :
       {std::pair{"prefill", options_.prefill}, std::pair{"decode", options_.decode}}) {
    for (uint32_t index = 0; index < count; ++index) {
      ASSIGN_OR_RETURN(ChildProcess child, ChildProcess::Start(WorkerSpec(role, index)));
      children_.push_back(std::move(child));
    }
  }
  for (size_t i = 0; i < children_.size(); ++i) {
    const std::string name = children_[i].name();
    progress_.Status(fmt::format("starting {}", name));
    ASSIGN_OR_RETURN(const std::string endpoint, AwaitReady(name));
    workers_.emplace_back(name, endpoint);
    progress_.Done(fmt::format("{:<12} {:<21} {}", name, endpoint, SecondsSince(start)));
  }
  return absl::OkStatus();
}

absl::Status Cluster::StartRouter() {
  const auto start = SteadyTime::now();
  progress_.Status("starting router");
  ASSIGN_OR_RETURN(ChildProcess child, ChildProcess::Start(RouterSpec()));
  children_.push_back(std::move(child));
  ASSIGN_OR_RETURN(endpoint_, AwaitReady("router"));
  RETURN_IF_ERROR(AwaitServing());
  progress_.Status("");
  progress_.Done(fmt::format("{:<12} {:<21} {}", "router", endpoint_, SecondsSince(start)));
  return absl::OkStatus();
}

absl::StatusOr<std::string> Cluster::AwaitReady(const std::string& name) {
  const std::string path = fmt::format("{}/{}.ready", folder_->path(), name);
  const auto limit = SteadyTime::now() + kStartLimit;
  while (SteadyTime::now() < limit) {
    std::string endpoint;
    if (std::getline(std::ifstream(path), endpoint)) return endpoint;
    RETURN_IF_ERROR(Watch());
  }
  return DeadlineExceeded("{} was not ready within {} s; its last lines:\n{}", name,
                          kStartLimit.count(),
                          LastLines(fmt::format("{}/{}.log", folder_->path(), name), kLastLines));
}

std::string Cluster::http_endpoint() const { return ReadyLine("router", "http="); }
std::string Cluster::admin_endpoint() const { return ReadyLine("router", "admin="); }
std::string Cluster::metrics_endpoint(std::string_view name) const {
  return ReadyLine(name, "metrics=");
}

pid_t Cluster::pid(std::string_view name) const {
  const auto found = std::ranges::find(children_, name, &ChildProcess::name);
  PENSTOCK_CHECK(found != children_.end(), "no child has this name");
  return found->pid();
}

std::string Cluster::ReadyLine(std::string_view name, std::string_view prefix) const {
  std::ifstream file(fmt::format("{}/{}.ready", folder_->path(), name));
  for (std::string line; std::getline(file, line);) {
    if (line.starts_with(prefix)) return line.substr(prefix.size());
  }
  return "";
}

absl::Status Cluster::AwaitServing() {
  progress_.Status("router is connecting to its workers");
  InferenceClient client({.endpoint = endpoint_});
  const auto limit = SteadyTime::now() + kStartLimit;
  absl::Status last = Unavailable("it was not asked");
  while (SteadyTime::now() < limit) {
    const auto models = client.ListModels(milliseconds(1000));
    last = models.status();
    if (models.ok() && std::ranges::any_of(models->models(), &v1::Model::ready)) {
      return absl::OkStatus();
    }
    RETURN_IF_ERROR(Watch());
  }
  return DeadlineExceeded("the router did not serve the model within {} s: {}; its last lines:\n{}",
                          kStartLimit.count(), last.ok() ? "no worker is ready" : Message(last),
                          LastLines(fmt::format("{}/router.log", folder_->path()), kLastLines));
}

absl::Status Cluster::Watch() {
  const int number = interrupts_.Wait(kTick);
  progress_.Tick();
  if (options_.verbose) ShowLogs();
  if (number != 0 && number != SIGCHLD) {
    signal_ = number;
    return Cancelled("stopped by signal {}", number);
  }
  return CheckChildren();
}

absl::Status Cluster::CheckChildren() {
  for (ChildProcess& child : children_) {
    if (const std::optional<ProcessEnd> end = child.Poll()) RETURN_IF_ERROR(OnEnd(child, *end));
  }
  return absl::OkStatus();
}

absl::Status Cluster::OnEnd(ChildProcess& child, const ProcessEnd& end) {
  const bool is_worker = child.name() != "router";
  if (serving_ && is_worker && MayStartAgain(child.name())) return StartAgain(child, end);
  child_exit_code_ = end.exit_code();
  return Unavailable("{} (pid {}) {}; its last lines:\n{}", child.name(), child.pid(), end.Text(),
                     LastLines(child.log(), kLastLines));
}

bool Cluster::MayStartAgain(const std::string& name) {
  std::deque<SteadyTime::time_point>& times = restarts_[name];
  const auto now = SteadyTime::now();
  while (!times.empty() && now - times.front() > kRestartsPeriod) times.pop_front();
  if (times.size() >= kRestartsMax) return false;
  times.push_back(now);
  return true;
}

// At its old address, which the router knows.
absl::Status Cluster::StartAgain(ChildProcess& worker, const ProcessEnd& end) {
  progress_.Line(fmt::format("{} (pid {}) {}; its requests continue, and it is started again",
                             worker.name(), worker.pid(), end.Text()));
  ProcessSpec spec = worker.spec();
  const auto same_name = [&](const auto& entry) { return entry.first == worker.name(); };
  const auto known = std::ranges::find_if(workers_, same_name);
  spec.arguments.push_back("--listen=" + known->second);  // The last of two counts.
  return worker.StartAgain(spec);
}

void Cluster::ShowLogs() {
  for (const ChildProcess& child : children_) {
    std::ifstream file(child.log(), std::ios::binary);
    int64_t& shown = shown_[child.name()];
    file.seekg(shown);
    for (std::string line; std::getline(file, line) && !file.eof();) {
      shown += static_cast<int64_t>(line.size()) + 1;
      progress_.Line(fmt::format("[{}] {}", child.name(), line));
    }
  }
}

void Cluster::Stop() {
  const auto running = [this] {
    return std::ranges::count_if(children_, [](ChildProcess& child) { return !child.Poll(); });
  };
  if (running() > 0) progress_.Status("stopping");
  for (const ChildProcess& child : children_) child.Signal(SIGTERM);
  const auto limit = SteadyTime::now() + kStopLimit;
  while (running() > 0 && SteadyTime::now() < limit) {
    const int number = interrupts_.Wait(kTick);
    progress_.Tick();
    if (options_.verbose) ShowLogs();
    if (number != 0 && number != SIGCHLD) break;
  }
  children_.clear();  // Kills what still runs.
  progress_.Status("");
  folder_.reset();
}

}  // namespace penstock
