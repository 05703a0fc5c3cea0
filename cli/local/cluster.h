#pragma once

#include <chrono>
#include <deque>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "cli/local/child_process.h"
#include "cli/local/commands.h"

namespace penstock {

class Interrupts;
class Progress;

// A router and its workers as children of this process. Everything is on loopback, the workers on
// free ports; ready files and logs are in a temporary folder. Main thread.
class Cluster {
 public:
  // All three outlive it. `interrupts` listens to SIGCHLD too.
  Cluster(const UpOptions& options, Interrupts& interrupts, Progress& progress);
  ~Cluster();

  // Starts everything and returns when the router serves the model. CANCELLED after a signal, see
  // signal(). When a child ends instead, its last words are shown and its exit code is kept.
  absl::Status Start();

  // The endpoint of the router.
  const std::string& endpoint() const { return endpoint_; }
  // The address of its OpenAI-compatible API; empty when it has none.
  std::string http_endpoint() const;
  std::string admin_endpoint() const;
  const std::string& folder() const { return folder_->path(); }
  // Names and endpoints of the workers, prefill first.
  const std::vector<std::pair<std::string, std::string>>& workers() const { return workers_; }
  // The process id of a worker or "router".
  pid_t pid(std::string_view name) const;
  // The address of its Prometheus metrics.
  std::string metrics_endpoint(std::string_view name) const;

  // Waits for one event: a child's end, a signal (CANCELLED) or a little time (OK). A worker that
  // ends once the cluster serves is started again, as an orchestrator does; when it ends again and
  // again, or another child ends, that is an error.
  absl::Status Watch();

  // SIGTERM to all, SIGKILL after 10 s or at the next signal. Twice is once.
  void Stop();

  int signal() const { return signal_; }
  // The exit code of the child that ended by itself.
  std::optional<int> child_exit_code() const { return child_exit_code_; }

 private:
  ProcessSpec WorkerSpec(const std::string& role, uint32_t index) const;
  ProcessSpec RouterSpec() const;
  // The rest of the line that begins with `prefix` in the ready file of `name`.
  std::string ReadyLine(std::string_view name, std::string_view prefix) const;
  absl::Status StartWorkers();
  absl::Status StartRouter();
  absl::StatusOr<std::string> AwaitReady(const std::string& name);
  absl::Status AwaitServing();
  absl::Status CheckChildren();
  absl::Status OnEnd(ChildProcess& child, const ProcessEnd& end);
  bool MayStartAgain(const std::string& name);
  absl::Status StartAgain(ChildProcess& worker, const ProcessEnd& end);
  void ShowLogs();

  const UpOptions& options_;
  Interrupts& interrupts_;
  Progress& progress_;
  std::optional<TemporaryFolder> folder_;
  std::vector<ChildProcess> children_;
  std::vector<std::pair<std::string, std::string>> workers_;
  std::string endpoint_;
  std::map<std::string, int64_t> shown_;  // bytes of each log, with --verbose
  // When each worker was started again, within the last minute.
  std::map<std::string, std::deque<std::chrono::steady_clock::time_point>> restarts_;
  bool serving_ = false;
  int signal_ = 0;
  std::optional<int> child_exit_code_;
};

}  // namespace penstock
