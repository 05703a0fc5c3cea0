#pragma once

#include <chrono>
#include <string>

namespace penstock {

// Shows what a long command does, on standard error. On a terminal the status is one line that is
// redrawn with the seconds it has taken; elsewhere each status is printed once. One thread.
class Progress {
 public:
  Progress();
  ~Progress();
  Progress(const Progress&) = delete;
  Progress& operator=(const Progress&) = delete;

  // The current activity. Empty: none.
  void Status(const std::string& text);
  // Redraws the status.
  void Tick();
  // A line that stays; `Done` and `Fail` mark it.
  void Line(const std::string& text);
  void Done(const std::string& text);
  void Fail(const std::string& text);

  bool terminal() const { return terminal_; }

 private:
  void Erase() const;

  const bool terminal_;
  const bool color_;
  std::string status_;
  std::chrono::steady_clock::time_point since_;
};

}  // namespace penstock
