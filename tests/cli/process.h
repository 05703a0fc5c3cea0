#pragma once

#include <chrono>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

namespace penstock {

// A real process whose standard streams are the test's. Ended, at the latest, with the object.
class Process {
 public:
  // `environment` is added to ours.
  explicit Process(const std::vector<std::string>& arguments,
                   const std::map<std::string, std::string>& environment = {});
  // The same on a terminal of its own: output() is all that appears on it.
  static std::unique_ptr<Process> OnTerminal(const std::vector<std::string>& arguments);
  ~Process();
  Process(const Process&) = delete;
  Process& operator=(const Process&) = delete;

  int pid() const { return pid_; }
  void Write(const std::string& text);
  void CloseInput();
  void Signal(int number) const;

  // Reads until standard output (or standard error) contains `text`. False when the stream ends, or
  // a minute passes, before that.
  bool AwaitOutput(const std::string& text);
  bool AwaitError(const std::string& text);

  // Reads the rest and waits for the end: the exit code, or 128 + n after signal n.
  int Wait();

  const std::string& output() const { return streams_[0].text; }
  const std::string& error() const { return streams_[1].text; }

 private:
  struct Stream {
    int fd = -1;
    std::string text;
  };
  Process() = default;
  // One round of reading both streams; false when both have ended.
  bool Pump(std::chrono::milliseconds timeout);
  bool Await(const Stream& stream, const std::string& text);

  int pid_ = -1;
  int input_ = -1;
  int status_ = 0;
  bool waited_ = false;
  Stream streams_[2];
};

}  // namespace penstock
