#pragma once

#include <functional>
#include <map>
#include <string>
#include <vector>

#include "base/status.h"

namespace penstock {

// A child process whose standard output, or what it writes to its pipe, we read. Killed and
// collected when this goes.
class Child {
 public:
  // Runs `body` in a fork of this process; it gets descriptors to read from and to write to us.
  static absl::StatusOr<Child> Fork(const std::function<void(int in, int out)>& body);
  // Runs a program found on PATH, with more environment. Its output is ours to read.
  static absl::StatusOr<Child> Execute(const std::vector<std::string>& command,
                                       const std::map<std::string, std::string>& environment);

  Child(Child&& other) noexcept;
  Child(const Child&) = delete;
  Child& operator=(const Child&) = delete;
  Child& operator=(Child&&) = delete;
  ~Child();

  absl::Status WriteLine(const std::string& line);
  // UNAVAILABLE when the child ends, or says nothing for `timeout_ms`.
  absl::StatusOr<std::string> ReadLine(int timeout_ms);

 private:
  Child(int pid, int input, int output) : pid_(pid), input_(input), output_(output) {}
  int pid_;
  int input_;
  int output_;
};

// The last line that `command` prints before it ends.
absl::StatusOr<std::string> LastLineOf(const std::vector<std::string>& command,
                                       const std::map<std::string, std::string>& environment,
                                       int timeout_ms);

// A port of 127.0.0.1 that nobody has just now.
absl::StatusOr<int> FreePort();
// True if a process listens there.
bool IsListening(int port);

}  // namespace penstock
