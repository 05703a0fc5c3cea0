#pragma once

#include <memory>
#include <string>

#include "base/status.h"

namespace penstock {

class Interrupts;

struct ReadResult {
  enum class Kind { kLine, kEnd, kSignal };
  Kind kind = Kind::kEnd;
  std::string line;  // without its end; on a terminal, what was typed before a signal
  int signal = 0;
};

// Lines from standard input, until its end or a signal.
class LineReader {
 public:
  virtual ~LineReader() = default;
  virtual ReadResult Read() = 0;
};

// On a terminal: a prompt, arrow keys and history. Elsewhere: the lines as they are. A line longer
// than 1 MiB is cut.
std::unique_ptr<LineReader> MakeLineReader(Interrupts& interrupts);

// All of standard input, e.g. a prompt that is piped in. OUT_OF_RANGE beyond `most` bytes;
// CANCELLED after a signal, whose number goes to `signal`.
absl::StatusOr<std::string> ReadStandardInput(Interrupts& interrupts, size_t max, int* signal);

bool IsUtf8(const std::string& text);

}  // namespace penstock
