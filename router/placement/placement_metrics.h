#pragma once

#include "base/metrics/metrics.h"
#include "router/placement/prefix_view.h"

namespace penstock {

// Metrics of the quality of placement's predictions, and of its decisions. The registry outlives
// it. Any thread.
struct PlacementMetrics {
  explicit PlacementMetrics(MetricsRegistry& registry);
  prometheus::Histogram& predicted_seconds;
  prometheus::Histogram& real_seconds;
  prometheus::Histogram& error_ratio;    // |predicted - real| / real
  prometheus::Counter& remote_prefills;  // prompts that a prefill worker computes
  prometheus::Counter& local_prefills;   // prompts that a decode worker computes
};

// Adds metrics of the prefix index that are read at each scrape. `view` outlives the server that
// serves the registry.
void AddPrefixViewMetrics(MetricsRegistry& registry, const PrefixView& view);

}  // namespace penstock
