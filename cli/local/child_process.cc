#include "cli/local/child_process.h"

#include <fcntl.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <filesystem>
#include <fstream>

#include "base/check.h"
#include "base/lifecycle.h"

namespace penstock {
namespace {

constexpr int64_t kTailBytes = 16 << 10;

// In the child, between fork and exec: only async-signal-safe calls. Returns only on failure.
void BecomeProgram(char* const* arguments, int log, int parent) {
  sigset_t none;
  sigemptyset(&none);
  sigprocmask(SIG_SETMASK, &none, nullptr);
  signal(SIGPIPE, SIG_DFL);
  setpgid(0, 0);
  if (!DieWithParent(parent)) return;
  const int input = open("/dev/null", O_RDONLY);
  dup2(input, STDIN_FILENO);
  dup2(log, STDOUT_FILENO);
  dup2(log, STDERR_FILENO);
  execv(arguments[0], arguments);
}

}  // namespace

absl::StatusOr<TemporaryFolder> TemporaryFolder::Create() {
  std::error_code error;
  std::filesystem::path parent = std::filesystem::temp_directory_path(error);
  if (error) parent = "/tmp";
  std::string path = (parent / "penstock-XXXXXX").string();
  if (mkdtemp(path.data()) == nullptr) {
    return Unavailable("cannot create {}: {}", path, std::strerror(errno));
  }
  return TemporaryFolder(std::move(path));
}

TemporaryFolder::~TemporaryFolder() {
  if (path_.empty()) return;
  std::error_code ignored;
  std::filesystem::remove_all(path_, ignored);
}

std::string ProcessEnd::Text() const {
  if (WIFSIGNALED(status)) {
    const int number = WTERMSIG(status);
    return fmt::format("was killed by signal {} ({})", number, sigdescr_np(number));
  }
  return fmt::format("ended with exit code {}", WEXITSTATUS(status));
}

std::optional<int> ProcessEnd::exit_code() const {
  if (!WIFEXITED(status)) return std::nullopt;
  return WEXITSTATUS(status);
}

absl::StatusOr<ChildProcess> ChildProcess::Start(const ProcessSpec& spec) {
  const std::string& program = spec.arguments.front();
  if (access(program.c_str(), X_OK) != 0) {
    return NotFound("cannot run {}: {}; build it, or say where it is with --bin-dir", program,
                    std::strerror(errno));
  }
  const int log = open(spec.log.c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0600);
  if (log < 0) return Unavailable("cannot create {}: {}", spec.log, std::strerror(errno));
  std::vector<char*> arguments;
  for (const std::string& argument : spec.arguments) {
    arguments.push_back(const_cast<char*>(argument.c_str()));  // execv takes it so
  }
  arguments.push_back(nullptr);
  const int parent = getpid();
  const pid_t pid = fork();
  if (pid == 0) {
    BecomeProgram(arguments.data(), log, parent);
    _exit(static_cast<int>(ExitCode::kOsError));
  }
  const int error = errno;
  close(log);
  if (pid < 0) return Unavailable("cannot start {}: {}", program, std::strerror(error));
  return ChildProcess(spec, pid);
}

absl::Status ChildProcess::StartAgain(const ProcessSpec& spec) {
  PENSTOCK_CHECK(end_.has_value(), "the process still runs");
  ASSIGN_OR_RETURN(ChildProcess next, Start(spec));
  spec_ = spec;
  pid_ = std::exchange(next.pid_, -1);
  end_.reset();
  return absl::OkStatus();
}

ChildProcess::~ChildProcess() {
  if (pid_ < 0 || Poll()) return;
  Signal(SIGKILL);
  waitpid(pid_, nullptr, 0);
}

const std::optional<ProcessEnd>& ChildProcess::Poll() {
  int status = 0;
  if (!end_ && waitpid(pid_, &status, WNOHANG) == pid_) end_ = ProcessEnd{status};
  return end_;
}

void ChildProcess::Signal(int number) const {
  if (!end_) kill(pid_, number);
}

std::string LastLines(const std::string& path, size_t count) {
  std::ifstream file(path, std::ios::binary | std::ios::ate);
  const int64_t size = file.tellg();
  file.seekg(std::max<int64_t>(0, size - kTailBytes));
  std::deque<std::string> lines;
  for (std::string line; std::getline(file, line);) {
    lines.push_back(std::move(line));
    if (lines.size() > count) lines.pop_front();
  }
  std::string text;
  for (const std::string& line : lines) text += fmt::format("    {}\n", line);
  return text;
}

}  // namespace penstock
