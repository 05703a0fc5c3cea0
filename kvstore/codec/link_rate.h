#pragma once

#include <array>
#include <cstddef>
#include <optional>

#include "base/clock.h"

namespace penstock {

// Estimates a link's rate from past transfers: the maximum over the last few bursts, because many
// causes make a burst slower than the link and none makes it faster. A burst lasts from its first
// Put until no Put is pending; idle time does not count. A burst that was short, or whose ends were
// busy for much of it, gives only a lower bound. One thread at a time.
class LinkRate {
 public:
  // The report of one ended Put.
  struct Sent {
    size_t bytes = 0;   // 0: it failed
    Duration making{};  // time of packing before the Put
    // Time that the receiver needed before it acknowledged the bytes.
    Duration handling{};
  };

  void OnPut(TimePoint now);
  void OnEnded(TimePoint now, const Sent& sent);
  bool busy() const { return pending_ > 0; }
  // nullopt until there are enough observations.
  std::optional<double> bytes_per_s() const;
  // True when the latest burst gave only a lower bound, so the link may be much faster.
  bool at_least() const { return at_least_; }

 private:
  struct Burst {
    TimePoint start{};
    double puts = 0;
    double bytes = 0;
    double making_s = 0;
    double handling_s = 0;
    bool failed = false;
    bool continues = false;  // continues a burst that was cut
  };
  void EndBurst(TimePoint now);
  void Count(double took_s);
  void Add(double rate) { rates_[bursts_++ % rates_.size()] = rate; }

  int pending_ = 0;
  Burst burst_;
  std::array<double, 4> rates_{};  // ring buffer of the last bursts
  size_t bursts_ = 0;              // counted bursts
  bool at_least_ = true;
};

}  // namespace penstock
