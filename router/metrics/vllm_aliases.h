#pragma once

#include <string>
#include <vector>

#include "base/metrics/metrics.h"

namespace penstock {

// Upper bounds of the buckets for the time to the first token, in seconds: those of vLLM.
std::vector<double> FirstTokenBuckets();

// Metrics under vLLM's names, for dashboards made for vLLM: the figures that clients see, which
// only the router knows. worker_metrics.h has the figures of each worker's scheduler. The registry
// outlives it. Any thread.
struct VllmAliases {
  VllmAliases(MetricsRegistry& registry, const std::string& model_name);

  prometheus::Histogram& first_token;
  prometheus::Histogram& next_token;
  // Successful requests only, up to `reached_length`:
  prometheus::Histogram& total;
  prometheus::Histogram& queue;    // waiting for workers and for its turn on the prefill worker
  prometheus::Histogram& prefill;  // from the start of compute to its end
  prometheus::Histogram& decode;   // from the first token to the last
  prometheus::Histogram& prompt;   // tokens of a request
  prometheus::Histogram& answer;
  prometheus::Counter& stopped;
  prometheus::Counter& reached_length;
  prometheus::Counter& prompt_tokens;
  prometheus::Counter& generation_tokens;
};

}  // namespace penstock
