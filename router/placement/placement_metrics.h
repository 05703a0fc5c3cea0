#pragma once

#include "base/metrics/metrics.h"
#include "router/placement/prefix_view.h"

namespace penstock {

// Whether placement sees what is coming: the time to the first token as predicted and as it was.
struct PlacementMetrics {
  explicit PlacementMetrics(MetricsRegistry& registry);
  prometheus::Histogram& predicted_seconds;
  prometheus::Histogram& real_seconds;
  prometheus::Histogram& error_ratio;  // |predicted - real| over real
  prometheus::Counter& split;          // prompts that a prefill worker computes
  prometheus::Counter& stayed;         // ... and a decode worker
};

// What the index knows and how stale it is, read at each scrape. `view` outlives the registry's
// server.
void AddPrefixViewMetrics(MetricsRegistry& registry, const PrefixView& view);

}  // namespace penstock
