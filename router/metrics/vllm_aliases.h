#pragma once

#include <string>

#include "base/metrics/metrics.h"

namespace penstock {

// What dashboards made for vLLM read of a server, under vLLM's names: what clients see, which only
// the router knows. What schedulers read of each worker is in worker_metrics.h. Any thread.
struct VllmAliases {
  VllmAliases(MetricsRegistry& registry, const std::string& model_name);

  prometheus::Histogram& first_token;
  prometheus::Histogram& next_token;
  prometheus::Histogram& total;  // of requests that ended well, as the next two
  prometheus::Counter& stopped;
  prometheus::Counter& reached_length;
  prometheus::Counter& prompt_tokens;
  prometheus::Counter& generation_tokens;
};

}  // namespace penstock
