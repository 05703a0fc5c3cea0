#pragma once

#include <array>
#include <cstddef>
#include <optional>

#include "base/clock.h"

namespace penstock {

// How fast a link is, from what went over it: the best of its last few bursts, as nothing makes a
// burst quicker than the link, and much makes it slower. A burst lasts from the first Put to where
// none is under way any more; only that time counts. Where it was short, or the two ends were busy
// for much of it, the link may have waited: that only tells that it is no slower. One thread at a
// time.
class LinkRate {
 public:
  // One Put, when it has ended.
  struct Sent {
    size_t bytes = 0;     // 0: it failed
    Duration making{};    // before it was put
    Duration handling{};  // by the receiver, before it said that all is there
  };

  void OnPut(TimePoint now);
  void OnEnded(TimePoint now, const Sent& sent);
  bool busy() const { return under_way_ > 0; }
  // Nothing until enough has been seen.
  std::optional<double> bytes_per_s() const;
  // The link may be much faster: the latest burst told no more than that it is no slower.
  bool at_least() const { return at_least_; }

 private:
  struct Burst {
    TimePoint start{};
    double puts = 0;
    double bytes = 0;
    double making_s = 0;
    double handling_s = 0;
    bool failed = false;
    bool goes_on = false;  // where another was cut
  };
  void EndBurst(TimePoint now);
  void Count(double took_s);
  void Add(double rate) { rates_[bursts_++ % rates_.size()] = rate; }

  int under_way_ = 0;
  Burst burst_;
  std::array<double, 4> rates_{};  // of the last bursts, in a ring
  size_t bursts_ = 0;              // that count
  bool at_least_ = true;
};

}  // namespace penstock
