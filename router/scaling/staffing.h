#pragma once

#include <cstdint>

namespace penstock {

// The load of one role, as a queue in front of equal workers.
struct QueueLoad {
  double work = 0;         // workers that the requests keep busy, each at SLO capacity
  double slots = 1;        // requests that a worker serves at the same time at SLO capacity
  double service_ms = 0;   // mean time that a request occupies a slot
  double wait_max_ms = 0;  // time that a request may wait for a slot and still meet the SLO
};

// The share of requests that wait longer than load.wait_max_ms for a slot of `workers` workers:
// Erlang's C formula, with the tail of Allen and Cunneen for service times that vary. 1 when the
// workers cannot do the work at all.
double LateShare(const QueueLoad& load, uint32_t workers);

struct StaffingRule {
  double late_max = 0.05;  // share of requests that may wait too long
  double busy_max = 0.85;  // utilisation of a worker's capacity, at most
};

// The fewest workers that keep the rule; at least 1, at most kWorkersMax.
inline constexpr uint32_t kWorkersMax = 4096;
uint32_t WorkersFor(const QueueLoad& load, const StaffingRule& rule);

}  // namespace penstock
