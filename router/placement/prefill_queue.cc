#include "router/placement/prefill_queue.h"

#include <algorithm>
#include <cmath>

namespace penstock {

void PrefillQueue::Add(uint64_t id, double predicted_ms, TimePoint now) {
  if (entries_.empty()) head_since_ = now;
  entries_.push_back({id, predicted_ms});
  recent_work_ms_ = RecentWorkMs(now) + predicted_ms;
  long_term_work_ms_ = LongTermWorkMs(now) + predicted_ms;
  recent_at_ = now;
  sum_ms_ += predicted_ms;
}

void PrefillQueue::Remove(uint64_t id, TimePoint now) {
  const auto found = std::find_if(entries_.begin(), entries_.end(),
                                  [id](const Entry& entry) { return entry.id == id; });
  if (found == entries_.end()) return;
  sum_ms_ -= found->ms;
  if (found == entries_.begin()) head_since_ = now;
  entries_.erase(found);
  if (entries_.empty()) sum_ms_ = 0;  // drops accumulated rounding errors
}

double PrefillQueue::RecentWorkMs(TimePoint now) const {
  return recent_work_ms_ * std::exp(-Milliseconds(now - recent_at_) / kRecentDecayMs);
}

double PrefillQueue::LongTermWorkMs(TimePoint now) const {
  return long_term_work_ms_ * std::exp(-Milliseconds(now - recent_at_) / kLongTermDecayMs);
}

double PrefillQueue::WaitMs(TimePoint now) const {
  if (entries_.empty()) return 0;
  const double done_ms = std::min(Milliseconds(now - head_since_), entries_.front().ms);
  return std::max(0.0, sum_ms_ - done_ms);
}

}  // namespace penstock
