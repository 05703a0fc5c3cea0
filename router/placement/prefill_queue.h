#pragma once

#include <cstdint>
#include <deque>

#include "base/clock.h"

namespace penstock {

// What one router has sent to one prefill worker and has not seen a first token of: predicted work,
// in the order sent. Not synchronised.
class PrefillQueue {
 public:
  // `id` of the caller's, not in it yet.
  void Add(uint64_t id, double predicted_ms, TimePoint now);
  // Its first token has come, or it will not come any more. Unknown ids change nothing.
  void Remove(uint64_t id, TimePoint now);
  // Until the worker begins what is sent now.
  double WaitMs(TimePoint now) const;
  // Work sent lately: of each ms sent, what is left after halving every 40 s or so.
  double RecentMs(TimePoint now) const;
  // The same over ten times as long.
  double LastingMs(TimePoint now) const;
  size_t size() const { return entries_.size(); }

  static constexpr double kRecentMs = 60'000;    // RecentMs falls to 1/e
  static constexpr double kLastingMs = 600'000;  // and LastingMs

 private:
  struct Entry {
    uint64_t id;
    double ms;
  };
  std::deque<Entry> entries_;
  double sum_ms_ = 0;
  double recent_ms_ = 0;   // at recent_at_
  double lasting_ms_ = 0;  // likewise
  TimePoint recent_at_;
  TimePoint head_since_;  // when the first one was begun, as far as one can tell
};

}  // namespace penstock
