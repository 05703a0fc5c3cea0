#include "base/log/log_output.h"

#include <poll.h>
#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <utility>

namespace penstock {
namespace {

// Returns false if the descriptor accepts no more, e.g. because the disk is full or the reader has
// closed the pipe.
bool WriteAll(int fd, std::string_view bytes) {
  while (!bytes.empty()) {
    const ssize_t written = write(fd, bytes.data(), bytes.size());
    if (written >= 0) {
      bytes.remove_prefix(static_cast<size_t>(written));
    } else if (errno == EAGAIN) {  // another process has made the shared descriptor non-blocking
      pollfd writable{.fd = fd, .events = POLLOUT};
      poll(&writable, 1, -1);
    } else if (errno != EINTR) {
      return false;
    }
  }
  return true;
}

// Starts a thread that handles no signals: the process waits for them elsewhere.
std::thread StartWithoutSignals(std::function<void()> run) {
  sigset_t all, before;
  sigfillset(&all);
  pthread_sigmask(SIG_SETMASK, &all, &before);
  std::thread thread(std::move(run));
  pthread_sigmask(SIG_SETMASK, &before, nullptr);
  return thread;
}

}  // namespace

LogOutput::~LogOutput() {
  {
    MutexLock lock(mutex_);
    closed_ = true;
    changed_.NotifyAll();
    if (!thread_.joinable()) return;
  }
  thread_.join();
}

void LogOutput::Write(std::string_view line) {
  MutexLock lock(mutex_);
  if (pending_.size() + line.size() > options_.bytes_max) return Lose(1);
  pending_ += line;
  if (!thread_.joinable()) thread_ = StartWithoutSignals([this] { Run(); });
  changed_.NotifyAll();
}

bool LogOutput::Flush(Duration limit) {
  const auto deadline = std::chrono::steady_clock::now() + limit;
  MutexLock lock(mutex_);
  while (writing_ || !pending_.empty()) {
    const Duration left = deadline - std::chrono::steady_clock::now();
    if (left <= Duration::zero()) return false;
    written_.WaitFor(mutex_, left);
  }
  return true;
}

uint64_t LogOutput::dropped() const {
  MutexLock lock(mutex_);
  return dropped_;
}

void LogOutput::Run() {
  std::string batch;
  while (const std::optional<uint64_t> missing = Take(batch)) {
    const bool written = WriteAll(options_.fd, batch);
    // Lines are dropped while the queue is full, so the missing ones belong behind the batch.
    if (written && *missing > 0) WriteAll(options_.fd, options_.dropped_line(*missing));
    if (written) continue;
    MutexLock lock(mutex_);
    Lose(static_cast<uint64_t>(std::count(batch.begin(), batch.end(), '\n')));
    unreported_ += *missing;
  }
}

std::optional<uint64_t> LogOutput::Take(std::string& batch) {
  batch.clear();
  MutexLock lock(mutex_);
  writing_ = false;
  written_.NotifyAll();
  while (pending_.empty() && !closed_) changed_.Wait(mutex_);
  if (closed_) return std::nullopt;
  batch.swap(pending_);
  writing_ = true;
  return std::exchange(unreported_, 0);
}

void LogOutput::Lose(uint64_t lines) {
  dropped_ += lines;
  unreported_ += lines;
}

}  // namespace penstock
