#pragma once

#include <cstdint>
#include <utility>

#include "base/clock.h"

namespace penstock {

// Rate limit of log lines, per second of the given clock. Pure: no locks and no clock of its own;
// the caller synchronises.
class LogRateLimit {
 public:
  explicit LogRateLimit(int lines_a_second) : lines_a_second_(lines_a_second) {}

  struct Verdict {
    bool write = false;
    uint64_t dropped_before = 0;  // dropped in the last second with drops; reported once
  };
  Verdict Check(TimePoint now) {
    Verdict verdict{.dropped_before = TakeDropped(now)};
    if (now >= second_ends_) {
      second_ends_ = now + std::chrono::seconds(1);
      left_ = lines_a_second_;
    }
    verdict.write = left_ > 0;
    if (verdict.write) {
      --left_;
    } else {
      ++dropped_now_;
    }
    return verdict;
  }

  // Returns the lines dropped in a second that has ended, unless they were returned before.
  uint64_t TakeDropped(TimePoint now) {
    return now >= second_ends_ ? std::exchange(dropped_now_, 0) : 0;
  }

 private:
  const int lines_a_second_;
  TimePoint second_ends_;
  int left_ = 0;
  uint64_t dropped_now_ = 0;
};

}  // namespace penstock
