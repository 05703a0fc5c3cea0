#pragma once

#include <sys/types.h>

#include <chrono>
#include <optional>
#include <string>
#include <vector>

namespace penstock {

// A child process of a test: killed with the object, its output kept in a file.
class Process {
 public:
  // Starts `arguments[0]` of the build's bin folder. Its standard output and error go to `log`.
  Process(const std::vector<std::string>& arguments, std::string log);
  ~Process();
  Process(Process&& other) noexcept;
  Process& operator=(Process&& other) noexcept;

  void Signal(int number) const;
  // Its exit code (128 + n after signal n), or nullopt while it runs after `patience`.
  std::optional<int> Wait(std::chrono::milliseconds patience);
  bool running() { return !Wait(std::chrono::milliseconds(0)).has_value(); }
  bool stopped() const;  // by SIGSTOP, its own or another's
  std::string Log() const;
  pid_t pid() const { return pid_; }

 private:
  pid_t pid_ = -1;
  std::optional<int> exit_code_;
  std::string log_;
};

}  // namespace penstock
