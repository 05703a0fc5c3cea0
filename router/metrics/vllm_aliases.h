#pragma once

#include <string>

#include "base/metrics/metrics.h"

namespace penstock {

// Metrics under vLLM's names, for dashboards made for vLLM: the figures that clients see, which
// only the router knows. worker_metrics.h has the figures of each worker's scheduler. The registry
// outlives it. Any thread.
struct VllmAliases {
  VllmAliases(MetricsRegistry& registry, const std::string& model_name);

  prometheus::Histogram& first_token;
  prometheus::Histogram& next_token;
  prometheus::Histogram& total;  // this and the next two count successful requests only
  prometheus::Counter& stopped;
  prometheus::Counter& reached_length;
  prometheus::Counter& prompt_tokens;
  prometheus::Counter& generation_tokens;
};

}  // namespace penstock
