#include "router/scaling/staffing.h"

#include <algorithm>
#include <cmath>

namespace penstock {
namespace {

// Squared coefficient of variation of service times: prompts and answers vary more than
// exponentially.
constexpr double kServiceVariation = 2;

// Slots beyond this many make no difference to the result, but to the time that it takes.
constexpr double kSlotsMax = 256;

// Erlang's B formula for one server more than `blocked` was computed for.
double NextBlocked(double blocked, double offered, double servers) {
  return offered * blocked / (servers + offered * blocked);
}

// `blocked` is Erlang's B for all slots of the workers.
double LateShareOf(const QueueLoad& load, double workers, double slots, double blocked) {
  const double used = load.work / workers;
  if (used >= 1) return 1;
  const double waits = blocked / (1 - used * (1 - blocked));
  if (load.service_ms <= 0) return waits;
  const double free_slots = (workers - load.work) * slots;
  const double decay = 2 / (1 + kServiceVariation) * free_slots / load.service_ms;
  return waits * std::exp(-decay * load.wait_max_ms);
}

double SlotsOf(const QueueLoad& load) { return std::clamp(std::floor(load.slots), 1.0, kSlotsMax); }

}  // namespace

double LateShare(const QueueLoad& load, uint32_t workers) {
  if (load.work <= 0) return 0;
  const double slots = SlotsOf(load);
  double blocked = 1;
  for (double server = 1; server <= workers * slots; ++server) {
    blocked = NextBlocked(blocked, load.work * slots, server);
  }
  return LateShareOf(load, workers, slots, blocked);
}

uint32_t WorkersFor(const QueueLoad& load, const StaffingRule& rule) {
  if (load.work <= 0) return 1;
  const double slots = SlotsOf(load);
  double blocked = 1, server = 0;
  for (uint32_t workers = 1; workers < kWorkersMax; ++workers) {
    while (server < workers * slots) blocked = NextBlocked(blocked, load.work * slots, ++server);
    if (load.work > rule.busy_max * workers) continue;
    if (LateShareOf(load, workers, slots, blocked) <= rule.late_max) return workers;
  }
  return kWorkersMax;
}

}  // namespace penstock
