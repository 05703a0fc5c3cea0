#pragma once

#include <optional>

#include "base/clock.h"

namespace penstock {

// Predicts a load from two moving averages: a ramp passes the slow one later than the fast one, so
// their distance is the slope. One thread.
class LoadTrend {
 public:
  LoadTrend(Duration fast, Duration slow) : fast_tau_(fast), slow_tau_(slow) {}

  // `now` must not decrease.
  void Observe(double load, TimePoint now);
  void Clear() { last_.reset(); }
  bool known() const { return last_.has_value(); }
  // The present level without noise.
  double level() const { return fast_; }
  // The change of the level in one second.
  double slope_per_s() const;
  // The level that the trend reaches after `ahead`; a falling trend counts as a level one.
  double After(Duration ahead) const;

 private:
  const Duration fast_tau_;
  const Duration slow_tau_;
  std::optional<TimePoint> first_;
  std::optional<TimePoint> last_;
  double fast_ = 0;
  double slow_ = 0;
};

}  // namespace penstock
