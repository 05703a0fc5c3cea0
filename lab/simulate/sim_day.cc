#include "lab/simulate/sim_day.h"

#include <cmath>
#include <numbers>

namespace penstock {
namespace {

constexpr double kTurn = 2 * std::numbers::pi;

// The amplitude of the cosine around the mean.
double SwingOf(const DayCurve& day) {
  return (day.peak_over_trough - 1) / (day.peak_over_trough + 1);
}

}  // namespace

double DayCurve::RateAt(double hour) const {
  return 1 - SwingOf(*this) * std::cos(kTurn * hour / hours);
}

double DayCurve::ShareBefore(double hour) const {
  const double part = hour / hours;
  return part - SwingOf(*this) * std::sin(kTurn * part) / kTurn;
}

// By bisection, because the share only grows.
double DayCurve::HourOf(double share) const {
  double low = 0, high = hours;
  for (int i = 0; i < 60; ++i) {
    const double middle = (low + high) / 2;
    (ShareBefore(middle) < share ? low : high) = middle;
  }
  return (low + high) / 2;
}

SimTrace SpreadOverDay(const SimTrace& trace, uint32_t plays, const DayCurve& day) {
  SimTrace spread{.unique_blocks = trace.unique_blocks * plays, .block_tokens = trace.block_tokens};
  spread.requests.reserve(trace.requests.size() * plays);
  const double first = trace.requests.front().arrival_s;
  const auto count = static_cast<double>(trace.requests.size());
  // One more gap of mean length separates a play from the next.
  const double play_s = (trace.requests.back().arrival_s - first) * count / (count - 1);
  for (uint32_t play = 0; play < plays; ++play) {
    for (SimRequest request : trace.requests) {
      const double share = (play + (request.arrival_s - first) / play_s) / plays;
      request.arrival_s = 3600 * day.HourOf(share);
      for (uint32_t& block : request.blocks) block += play * trace.unique_blocks;
      spread.requests.push_back(std::move(request));
    }
  }
  return spread;
}

}  // namespace penstock
