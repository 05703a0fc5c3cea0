#pragma once

#include <deque>
#include <utility>
#include <vector>

#include "router/fleet/worker_table.h"
#include "router/scaling/scale_target.h"

namespace penstock {

// The replicas by the rule of the chart's ScaledObjects (deploy/helm/penstock): prompt tokens that
// wait, over 8,192, and the used shares of decode workers' KV pools, over 0.7, each carried out by
// a HorizontalPodAutoscaler with its defaults and 300 s of stabilization downwards. One thread.
class KedaRule {
 public:
  KedaRule(uint32_t min, uint32_t max) : min_(min), max_(max) {}

  // Call it about once a second; every 15 s it looks at the workers.
  ReplicaCounts Observe(const std::vector<WorkerPicture>& workers, const ReplicaCounts& current,
                        TimePoint now);

 private:
  using History = std::deque<std::pair<TimePoint, uint32_t>>;
  uint32_t Next(double total, double threshold, uint32_t current, History& history, TimePoint now);

  const uint32_t min_;
  const uint32_t max_;
  History prefill_;
  History decode_;
  TimePoint next_look_{};
};

}  // namespace penstock
