#pragma once

#include <fcntl.h>
#include <unistd.h>

#include <string>
#include <string_view>

#include "base/check.h"
#include "lab/fake/temp_folder.h"
#include "tests/support/files.h"
#include "tests/support/wait_until.h"

namespace penstock {

// Sends a standard stream to a file while it lives, so that a test can wait for lines that other
// threads write. Nothing is lost between two looks, unlike with gtest's CaptureStderr.
class CapturedOutput {
 public:
  // `fd`: STDOUT_FILENO or STDERR_FILENO.
  explicit CapturedOutput(int fd) : fd_(fd), saved_(dup(fd)) {
    const int file = open(path().c_str(), O_CREAT | O_WRONLY | O_APPEND | O_CLOEXEC, 0600);
    PENSTOCK_CHECK(saved_ >= 0 && file >= 0 && dup2(file, fd_) == fd_);
    close(file);
  }
  ~CapturedOutput() {
    dup2(saved_, fd_);
    close(saved_);
  }
  CapturedOutput(const CapturedOutput&) = delete;
  CapturedOutput& operator=(const CapturedOutput&) = delete;

  std::string text() const { return ReadFile(path()); }
  int Count(std::string_view part) const {
    const std::string all = text();
    int found = 0;
    for (size_t at = all.find(part); at != all.npos; at = all.find(part, at + 1)) ++found;
    return found;
  }
  // Waits until `part` stands in the text at least `count` times. False if time runs out before.
  [[nodiscard]] bool WaitFor(std::string_view part, int count = 1) const {
    return WaitUntil([&] { return Count(part) >= count; });
  }

 private:
  std::string path() const { return folder_.path() + "/output"; }

  const TempFolder folder_;
  const int fd_;
  const int saved_;
};

}  // namespace penstock
