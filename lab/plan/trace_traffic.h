#pragma once

#include <cstdint>
#include <optional>

#include "base/status.h"
#include "lab/plan/capacity_plan.h"
#include "lab/replay/cache_trace.h"
#include "lab/simulate/sim_trace.h"

namespace penstock {

// The traffic of a recorded trace: its rate, its prompts and answers, and how much of each prompt a
// prefix cache of a given size has. One thread.
class TraceTraffic {
 public:
  // `requests_per_s` absent: the trace's own. INVALID_ARGUMENT: the trace's blocks have another
  // size than trace.block_tokens, or all requests arrive at once.
  static absl::StatusOr<TraceTraffic> Of(SimTrace trace, std::optional<double> requests_per_s);

  // Replays the trace over the workers' prefix cache with their default policy, and room for this
  // many tokens: that of all prefill workers together, as if each prefix were on one of them, where
  // placement would send its requests.
  absl::StatusOr<Traffic> At(int64_t cache_tokens) const;
  // With room for everything.
  absl::StatusOr<Traffic> Unlimited() const;
  size_t requests() const { return trace_.requests.size(); }

 private:
  TraceTraffic(SimTrace trace, double requests_per_s);

  SimTrace trace_;
  CacheTrace blocks_;
  Traffic means_;  // without hits
};

// A plan for a trace: with as many prefill workers as keep the target at the hit ratio that the
// caches of these workers reach.
struct TracePlan {
  PlanRequest request;  // with the traffic of the trace
  CapacityPlan plan;
};
// Errors of MakePlan. `request.traffic` is ignored.
absl::StatusOr<TracePlan> PlanForTrace(PlanRequest request, const TraceTraffic& trace);

}  // namespace penstock
