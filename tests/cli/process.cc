#include "tests/cli/process.h"

#include <fcntl.h>
#include <poll.h>
#include <pty.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>

#include "base/check.h"

namespace penstock {
namespace {

constexpr std::chrono::minutes kPatience{1};

struct PipeEnds {
  PipeEnds() {
    int ends[2];
    PENSTOCK_CHECK_EQ(pipe2(ends, O_CLOEXEC), 0);
    reading = ends[0];
    writing = ends[1];
  }
  int reading;
  int writing;
};

// As execv takes them; they point into `arguments`.
std::vector<char*> RawArguments(const std::vector<std::string>& arguments) {
  std::vector<char*> raw;
  for (const std::string& argument : arguments) raw.push_back(const_cast<char*>(argument.c_str()));
  raw.push_back(nullptr);
  return raw;
}

}  // namespace

Process::Process(const std::vector<std::string>& arguments,
                 const std::map<std::string, std::string>& environment) {
  signal(SIGPIPE, SIG_IGN);
  const PipeEnds input;
  const PipeEnds output;
  const PipeEnds error;
  std::vector<char*> raw = RawArguments(arguments);
  pid_ = fork();
  if (pid_ == 0) {
    for (const auto& [name, value] : environment) setenv(name.c_str(), value.c_str(), 1);
    dup2(input.reading, STDIN_FILENO);
    dup2(output.writing, STDOUT_FILENO);
    dup2(error.writing, STDERR_FILENO);
    execv(raw[0], raw.data());
    _exit(127);
  }
  close(input.reading);
  close(output.writing);
  close(error.writing);
  input_ = input.writing;
  streams_[0].fd = output.reading;
  streams_[1].fd = error.reading;
}

std::unique_ptr<Process> Process::OnTerminal(const std::vector<std::string>& arguments) {
  std::unique_ptr<Process> process(new Process());  // The constructor is ours alone.
  const winsize size = {.ws_row = 24, .ws_col = 100, .ws_xpixel = 0, .ws_ypixel = 0};
  std::vector<char*> raw = RawArguments(arguments);
  int terminal = -1;
  process->pid_ = forkpty(&terminal, nullptr, nullptr, &size);
  if (process->pid_ == 0) {
    setenv("TERM", "xterm", 1);
    execv(raw[0], raw.data());
    _exit(127);
  }
  process->input_ = dup(terminal);
  process->streams_[0].fd = terminal;
  return process;
}

Process::~Process() {
  if (!waited_) {
    Signal(SIGKILL);
    Wait();
  }
}

void Process::Write(const std::string& text) {
  PENSTOCK_CHECK_EQ(write(input_, text.data(), text.size()), static_cast<ssize_t>(text.size()));
}

void Process::CloseInput() {
  if (input_ >= 0) close(input_);
  input_ = -1;
}

void Process::Signal(int number) const {
  if (!waited_) kill(pid_, number);
}

bool Process::AwaitOutput(const std::string& text) { return Await(streams_[0], text); }
bool Process::AwaitError(const std::string& text) { return Await(streams_[1], text); }

bool Process::Await(const Stream& stream, const std::string& text) {
  const auto limit = std::chrono::steady_clock::now() + kPatience;
  while (stream.text.find(text) == std::string::npos) {
    if (std::chrono::steady_clock::now() > limit) return false;
    if (!Pump(std::chrono::milliseconds(100))) return stream.text.find(text) != std::string::npos;
  }
  return true;
}

bool Process::Pump(std::chrono::milliseconds timeout) {
  std::array<pollfd, 2> waiting;
  for (size_t i = 0; i < 2; ++i) {
    waiting[i] = {.fd = streams_[i].fd, .events = POLLIN, .revents = 0};
  }
  if (poll(waiting.data(), waiting.size(), static_cast<int>(timeout.count())) < 0) return true;
  for (size_t i = 0; i < 2; ++i) {
    if (waiting[i].revents == 0) continue;
    char buffer[4096];
    const ssize_t got = read(streams_[i].fd, buffer, sizeof(buffer));
    if (got > 0) {
      streams_[i].text.append(buffer, static_cast<size_t>(got));
    } else {
      close(streams_[i].fd);
      streams_[i].fd = -1;
    }
  }
  return streams_[0].fd >= 0 || streams_[1].fd >= 0;
}

int Process::Wait() {
  if (!waited_) {
    CloseInput();
    const auto limit = std::chrono::steady_clock::now() + kPatience;
    while (Pump(std::chrono::milliseconds(100))) {
      if (std::chrono::steady_clock::now() > limit) kill(pid_, SIGKILL);
    }
    waitpid(pid_, &status_, 0);
    waited_ = true;
  }
  return WIFEXITED(status_) ? WEXITSTATUS(status_) : 128 + WTERMSIG(status_);
}

}  // namespace penstock
