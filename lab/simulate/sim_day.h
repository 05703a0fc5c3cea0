#pragma once

#include <cstdint>

#include "lab/simulate/sim_trace.h"

namespace penstock {

// The rate of requests over one day: a cosine with its trough at the begin and the end.
struct DayCurve {
  double hours = 24;
  double peak_over_trough = 4;

  // The rate at a time, over the mean rate. `hour` is 0 to `hours`.
  double RateAt(double hour) const;
  // The share of the day's requests that arrive before `hour`.
  double ShareBefore(double hour) const;
  // The inverse of ShareBefore.
  double HourOf(double share) const;
};

// Plays the trace `plays` times, one after the other and each time by other users, so that no two
// plays share blocks, and moves every arrival so that the rate follows the curve. Requests keep
// their order and their prefixes.
SimTrace SpreadOverDay(const SimTrace& trace, uint32_t plays, const DayCurve& day);

}  // namespace penstock
