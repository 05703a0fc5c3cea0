#pragma once

#include <deque>
#include <string>
#include <utility>

#include "base/clock.h"
#include "router/scaling/load_trend.h"
#include "router/scaling/staffing.h"

namespace penstock {

// The timing of changes to the number of workers.
struct ScalePolicy {
  StaffingRule staffing;
  Duration start_up = std::chrono::seconds(120);   // from a new replica to its first request
  Duration smoothing = std::chrono::seconds(60);   // of the load
  Duration trend = std::chrono::seconds(600);      // of its slope
  Duration confirm_up = std::chrono::seconds(15);  // a shortage must last this long
  Duration hold_down = std::chrono::seconds(600);  // a worker must be spare for this long
  Duration between_downs = std::chrono::seconds(120);
  // From an increase that follows a decrease to the next decrease. It bounds oscillation: in any
  // such time the direction changes twice at most.
  Duration settle = std::chrono::seconds(3600);
  double spare_margin = 0.1;  // growth of the load that must not need a removed worker back
};

// The number of workers that one role needs, over time. No clock and no I/O; one thread.
class RoleScaler {
 public:
  explicit RoleScaler(const ScalePolicy& policy)
      : policy_(policy), work_(policy.smoothing, policy.trend) {}

  // `load`: measured since the last call. `supply`: workers that serve in the role, or will when
  // they have started. `now` must not decrease.
  void Observe(const QueueLoad& load, uint32_t supply, TimePoint now);
  // The load cannot be measured: nothing is decided on it.
  void Forget();

  uint32_t needed() const { return needed_; }
  // The workers that are missing; 0: none, or not for long enough.
  uint32_t missing(TimePoint now) const;
  // True when the role needs one worker less, has for long enough, and may lose one now.
  bool spare(TimePoint now) const { return SpareFor(policy_.hold_down, now); }
  // The same where the worker only changes its role, from which it can return within seconds.
  bool can_lend(TimePoint now) const { return SpareFor(policy_.confirm_up, now); }
  // True when can_lend() may be true soon.
  bool may_lend_soon(TimePoint now) const { return SpareFor(Duration::zero(), now); }
  void OnAdded(TimePoint now);
  void OnRemoved(TimePoint now);

  double work() const { return work_.level(); }
  std::string Reason() const;

 private:
  bool SpareFor(Duration time, TimePoint now) const;
  uint32_t IncreaseLimit(TimePoint now) const;

  const ScalePolicy policy_;
  LoadTrend work_;
  double ahead_ = 0;  // the work when a worker that is added now would serve
  uint32_t supply_ = 0;
  uint32_t needed_ = 0;
  std::optional<TimePoint> short_since_;
  std::optional<TimePoint> first_;
  std::deque<std::pair<TimePoint, uint32_t>> needs_;  // with the margin, of the last hold_down
  std::optional<TimePoint> increased_;  // the first increase within the present start_up
  uint32_t supply_before_ = 0;          // that increase
  bool removed_last_ = false;
  TimePoint next_removal_{};
};

}  // namespace penstock
