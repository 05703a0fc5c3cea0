#pragma once

#include <sys/types.h>

#include <optional>
#include <string>
#include <vector>

#include "base/status.h"

namespace penstock {

// A folder of this process's own, removed with all that is in it.
class TemporaryFolder {
 public:
  // Under $TMPDIR or /tmp. UNAVAILABLE, with the path.
  static absl::StatusOr<TemporaryFolder> Create();
  TemporaryFolder(TemporaryFolder&& other) noexcept : path_(std::exchange(other.path_, "")) {}
  TemporaryFolder& operator=(TemporaryFolder&&) = delete;
  ~TemporaryFolder();

  const std::string& path() const { return path_; }

 private:
  explicit TemporaryFolder(std::string path) : path_(std::move(path)) {}
  std::string path_;
};

// How a process ended, e.g. "ended with exit code 66" or "was killed by signal 9 (Killed)".
struct ProcessEnd {
  int status = 0;  // as of waitpid
  std::string Text() const;
  std::optional<int> exit_code() const;
};

struct ProcessSpec {
  std::string name;                    // for people
  std::vector<std::string> arguments;  // the first is the program's path
  std::string log;                     // file that takes its output and errors
};

// A program in a process group of its own, so that the terminal's Ctrl-C reaches only us; it ends
// with us. Its owner reaps it: Poll after SIGCHLD. Main thread.
class ChildProcess {
 public:
  // NOT_FOUND when there is no such program, else UNAVAILABLE.
  static absl::StatusOr<ChildProcess> Start(const ProcessSpec& spec);
  ChildProcess(ChildProcess&& other) noexcept
      : spec_(std::move(other.spec_)), pid_(std::exchange(other.pid_, -1)), end_(other.end_) {}
  ChildProcess& operator=(ChildProcess&&) = delete;
  // Kills it if it runs.
  ~ChildProcess();

  // Runs a program in place of the one that has ended. Errors of Start.
  absl::Status StartAgain(const ProcessSpec& spec);

  const std::string& name() const { return spec_.name; }
  const std::string& log() const { return spec_.log; }
  const ProcessSpec& spec() const { return spec_; }
  pid_t pid() const { return pid_; }

  // How it ended; nothing while it runs.
  const std::optional<ProcessEnd>& Poll();
  void Signal(int number) const;

 private:
  ChildProcess(ProcessSpec spec, pid_t pid) : spec_(std::move(spec)), pid_(pid) {}
  ProcessSpec spec_;
  pid_t pid_;
  std::optional<ProcessEnd> end_;
};

// The last lines of a file, at most `count` of them and 16 KiB, each indented.
std::string LastLines(const std::string& path, size_t count);

}  // namespace penstock
