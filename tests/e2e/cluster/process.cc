#include "tests/e2e/cluster/process.h"

#include <fcntl.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <utility>

#include "base/check.h"
#include "tests/support/environment.h"
#include "tests/support/files.h"
#include "tests/support/wait_until.h"

namespace penstock {
namespace {

[[noreturn]] void Execute(const std::vector<std::string>& arguments, const std::string& log) {
  const int fd = open(log.c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0600);
  dup2(fd, STDOUT_FILENO);
  dup2(fd, STDERR_FILENO);
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  std::vector<char*> argv;
  for (const std::string& argument : arguments) argv.push_back(const_cast<char*>(argument.c_str()));
  argv.push_back(nullptr);
  execv(argv[0], argv.data());
  _exit(127);
}

}  // namespace

Process::Process(const std::vector<std::string>& arguments, std::string log)
    : log_(std::move(log)) {
  std::vector<std::string> command = arguments;
  command[0] = BinaryFolder() + "/" + command[0];
  pid_ = fork();
  if (pid_ == 0) Execute(command, log_);
  PENSTOCK_CHECK_GT(pid_, 0);
}

Process::~Process() {
  if (pid_ <= 0 || exit_code_.has_value()) return;
  kill(pid_, SIGKILL);
  waitpid(pid_, nullptr, 0);
}

Process::Process(Process&& other) noexcept
    : pid_(std::exchange(other.pid_, -1)),
      exit_code_(other.exit_code_),
      log_(std::move(other.log_)) {}

Process& Process::operator=(Process&& other) noexcept {
  std::swap(pid_, other.pid_);
  std::swap(exit_code_, other.exit_code_);
  std::swap(log_, other.log_);
  return *this;
}

void Process::Signal(int number) const { kill(pid_, number); }

std::optional<int> Process::Wait(std::chrono::milliseconds patience) {
  WaitUntil(
      [this] {
        if (exit_code_.has_value()) return true;
        int status = 0;
        if (waitpid(pid_, &status, WNOHANG) != pid_) return false;
        exit_code_ = WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
        return true;
      },
      patience);
  return exit_code_;
}

bool Process::stopped() const {
  const std::string stat = ReadFile("/proc/" + std::to_string(pid_) + "/stat");
  const size_t name_end = stat.rfind(')');
  return name_end != std::string::npos && stat.substr(name_end + 2, 1) == "T";
}

std::string Process::Log() const { return ReadFile(log_); }

}  // namespace penstock
