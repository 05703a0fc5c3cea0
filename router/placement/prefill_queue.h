#pragma once

#include <cstdint>
#include <deque>

#include "base/clock.h"

namespace penstock {

// The predicted work that one router has sent to one prefill worker and that has no first token
// yet, in the order sent. The caller synchronizes.
class PrefillQueue {
 public:
  // `id` is the caller's and not in the queue yet.
  void Add(uint64_t id, double predicted_ms, TimePoint now);
  // The first token of `id` has arrived, or the attempt has ended. Unknown ids are ignored.
  void Remove(uint64_t id, TimePoint now);
  // The predicted time until the worker starts a prompt that is sent now.
  double WaitMs(TimePoint now) const;
  // The work sent so far, decayed by 1/e every kRecentDecayMs.
  double RecentWorkMs(TimePoint now) const;
  // The work sent so far, decayed by 1/e every kLongTermDecayMs.
  double LongTermWorkMs(TimePoint now) const;
  size_t size() const { return entries_.size(); }

  static constexpr double kRecentDecayMs = 60'000;
  static constexpr double kLongTermDecayMs = 600'000;

 private:
  struct Entry {
    uint64_t id;
    double ms;
  };
  std::deque<Entry> entries_;
  double sum_ms_ = 0;
  double recent_work_ms_ = 0;     // at recent_at_
  double long_term_work_ms_ = 0;  // at recent_at_
  TimePoint recent_at_;
  TimePoint head_since_;  // estimated start of the first entry: when its predecessor ended
};

}  // namespace penstock
