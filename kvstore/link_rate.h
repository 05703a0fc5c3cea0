#pragma once

#include <array>
#include <cstddef>
#include <optional>

#include "base/clock.h"

namespace penstock {

// How fast a link is, from what went over it: the best of its last few bursts, as nothing makes a
// burst quicker than the link, and much makes it slower. A burst lasts from the first Put to where
// none is under way any more; only that time counts, less what the receiver did meanwhile. One
// thread at a time.
class LinkRate {
 public:
  void OnPut(TimePoint now);
  // A Put has ended; `delivered` are its bytes, 0 when it failed, and `handling` is what the
  // receiver did with them before it said so. Returns the time since the last one ended, or since
  // this burst began.
  Duration OnEnded(TimePoint now, size_t delivered, Duration handling = {});
  bool busy() const { return under_way_ > 0; }
  // Nothing until enough has been seen.
  std::optional<double> bytes_per_s() const;

 private:
  struct Burst {
    TimePoint start{};
    double before_s = 0;  // of small ones that count with this one
    double bytes = 0;
    double handling_s = 0;
    bool failed = false;
  };
  void EndBurst(TimePoint now);

  int under_way_ = 0;
  TimePoint counted_to_{};
  Burst burst_;
  std::array<double, 4> rates_{};  // of the last bursts, in a ring
  size_t bursts_ = 0;              // ever
};

}  // namespace penstock
