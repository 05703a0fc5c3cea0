#include "router/scaling/role_scaler.h"

#include <fmt/format.h>

#include <algorithm>

namespace penstock {

void RoleScaler::Observe(const QueueLoad& load, uint32_t supply, TimePoint now) {
  if (!first_) first_ = now;
  supply_ = supply;
  work_.Observe(load.work, now);
  ahead_ = work_.After(policy_.start_up + policy_.confirm_up);
  QueueLoad expected = load;
  expected.work = ahead_;
  needed_ = WorkersFor(expected, policy_.staffing);
  expected.work *= 1 + policy_.spare_margin;
  needs_.emplace_back(now, WorkersFor(expected, policy_.staffing));
  while (needs_.front().first < now - policy_.hold_down) needs_.pop_front();
  if (needed_ <= supply) {
    short_since_.reset();
  } else if (!short_since_) {
    short_since_ = now;
  }
}

void RoleScaler::Forget() {
  work_.Clear();
  needs_.clear();
  first_.reset();
  short_since_.reset();
  needed_ = 0;
}

uint32_t RoleScaler::missing(TimePoint now) const {
  if (!short_since_ || now - *short_since_ < policy_.confirm_up) return 0;
  return std::min(needed_, std::max(supply_, IncreaseLimit(now))) - supply_;
}

bool RoleScaler::SpareFor(Duration time, TimePoint now) const {
  if (!first_ || now - *first_ < time || now < next_removal_) return false;
  return std::ranges::all_of(
      needs_, [&](const auto& need) { return need.first < now - time || need.second < supply_; });
}

// A wrong measurement must not start a whole fleet: until the workers that were added can serve,
// and with them the measurement can be checked, there are at most twice as many, or four more.
uint32_t RoleScaler::IncreaseLimit(TimePoint now) const {
  constexpr uint32_t kAtOnce = 4;
  const bool recent = increased_ && now - *increased_ < policy_.start_up;
  const uint32_t before = recent ? supply_before_ : supply_;
  return std::max(2 * before, before + kAtOnce);
}

void RoleScaler::OnAdded(TimePoint now) {
  short_since_.reset();
  if (!increased_ || now - *increased_ >= policy_.start_up) {
    increased_ = now;
    supply_before_ = supply_;
  }
  if (removed_last_) next_removal_ = std::max(next_removal_, now + policy_.settle);
  removed_last_ = false;
}

void RoleScaler::OnRemoved(TimePoint now) {
  removed_last_ = true;
  next_removal_ = std::max(next_removal_, now + policy_.between_downs);
}

std::string RoleScaler::Reason() const {
  if (!first_) return "the load is unknown";
  return fmt::format(
      "the load keeps {:.2f} workers busy and {:.2f} in {:.0f} s, for which the SLO needs {}",
      work_.level(), ahead_, Milliseconds(policy_.start_up + policy_.confirm_up) / 1000, needed_);
}

}  // namespace penstock
