#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <thread>
#include <utility>

#include "base/clock.h"
#include "base/mutex.h"

namespace penstock {

// Options of LogOutput.
struct LogOutputOptions {
  int fd = 2;                  // outlives the output
  size_t bytes_max = 1 << 20;  // limit of the lines that wait to be written
  // Formats the line that reports dropped lines.
  std::function<std::string(uint64_t lines)> dropped_line;
};

// Writes lines to a file descriptor on a thread of its own, so that a reader that stalls blocks no
// other thread. Lines that find the queue full are dropped and counted. When output works again, a
// line reports their number at the place where they are missing. Any thread may call it.
class LogOutput {
 public:
  // The thread starts with the first line, so that a program can fork before it.
  explicit LogOutput(LogOutputOptions options) : options_(std::move(options)) {}
  // Drops the lines that wait, and waits for the present write, which a reader that stalls blocks.
  ~LogOutput();
  LogOutput(const LogOutput&) = delete;
  LogOutput& operator=(const LogOutput&) = delete;

  // Queues a line, which includes its line break. Does not block.
  void Write(std::string_view line) EXCLUDES(mutex_);
  // Waits until every queued line is written. Returns false if `limit` passes before.
  bool Flush(Duration limit) EXCLUDES(mutex_);
  // Lines dropped since the start.
  uint64_t dropped() const EXCLUDES(mutex_);

 private:
  void Run() EXCLUDES(mutex_);
  // Waits for lines and moves them to `batch`. Returns the lines dropped since the last call, or
  // nullopt at the end.
  std::optional<uint64_t> Take(std::string& batch) EXCLUDES(mutex_);
  void Lose(uint64_t lines) REQUIRES(mutex_);

  const LogOutputOptions options_;
  mutable Mutex mutex_;
  CondVar changed_;
  CondVar written_;
  std::string pending_ GUARDED_BY(mutex_);
  bool writing_ GUARDED_BY(mutex_) = false;
  bool closed_ GUARDED_BY(mutex_) = false;
  uint64_t dropped_ GUARDED_BY(mutex_) = 0;
  uint64_t unreported_ GUARDED_BY(mutex_) = 0;  // dropped lines without a line that reports them
  std::thread thread_;
};

}  // namespace penstock
