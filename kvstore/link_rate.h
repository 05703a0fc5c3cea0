#pragma once

#include <cstddef>
#include <optional>

#include "base/clock.h"

namespace penstock {

// How fast a link has really been: bytes over the time in which any were under way, recent ones
// counting more. One thread at a time.
class LinkRate {
 public:
  void OnPut(TimePoint now);
  // A Put has ended; `delivered` are its bytes, 0 when it failed.
  // Returns the time that is put down to it.
  Duration OnEnded(TimePoint now, size_t delivered);
  // Nothing until enough has been seen.
  std::optional<double> bytes_per_s() const;

 private:
  int under_way_ = 0;
  TimePoint counted_to_{};
  double bytes_ = 0, seconds_ = 0;  // decaying sums
};

}  // namespace penstock
