#include "router/scaling/load_trend.h"

#include <algorithm>
#include <cmath>

namespace penstock {
namespace {

double Seconds(Duration time) { return Milliseconds(time) / 1000; }

// The weight of a new value in an average that starts with the first one: the plain mean until
// `tau` has passed, then exponential.
double WeightOf(Duration step, Duration since_first, Duration tau) {
  return 1 - std::exp(-Seconds(step) / Seconds(std::min(tau, since_first)));
}

}  // namespace

void LoadTrend::Observe(double load, TimePoint now) {
  if (!last_) {
    first_ = last_ = now;
    fast_ = slow_ = load;
    return;
  }
  if (now <= *last_) return;
  const Duration step = now - *last_;
  fast_ += WeightOf(step, now - *first_, fast_tau_) * (load - fast_);
  slow_ += WeightOf(step, now - *first_, slow_tau_) * (load - slow_);
  last_ = now;
}

double LoadTrend::slope_per_s() const {
  // Before the slow average has seen much, its distance is noise.
  if (!last_ || *last_ - *first_ < slow_tau_) return 0;
  return (fast_ - slow_) / Seconds(slow_tau_ - fast_tau_);
}

double LoadTrend::After(Duration ahead) const {
  return fast_ + std::max(0.0, slope_per_s()) * Seconds(fast_tau_ + ahead);
}

}  // namespace penstock
