#pragma once

#include <map>
#include <string>
#include <vector>

#include "router/fleet/worker_table.h"
#include "router/scaling/scale_decider.h"

namespace penstock {

// The latency that every request should keep.
struct ScaleTargets {
  double ttft_ms = 2000;
  double tpot_ms = 100;
};

// Measures the load of each role from what the workers report, so that every router measures the
// same, whichever requests are its own. No clock and no I/O; one thread.
class LoadMeter {
 public:
  explicit LoadMeter(const ScaleTargets& targets) : targets_(targets) {}

  // `replicas` of the result are the workers that are known. `now` must not decrease.
  ScaleSituation Measure(const std::vector<WorkerPicture>& workers, const ServiceTimes& times,
                         TimePoint now);

 private:
  struct Seen {
    uint64_t incarnation = 0;
    uint32_t role_epoch = 0;
    uint64_t busy_us = 0;
    TimePoint at;
    bool used = true;  // by the present call
  };
  // The share of the time since the last call in which the worker computed.
  double BusyShare(const WorkerPicture& worker, TimePoint now);

  const ScaleTargets targets_;
  std::map<std::string, Seen> seen_;  // by endpoint
};

}  // namespace penstock
