#pragma once

#include <functional>
#include <string>

#include "base/metrics/metrics.h"
#include "proto/worker.pb.h"

namespace penstock {

// Facts for a worker's gauges that its WorkerState does not have.
struct WorkerFacts {
  std::string model_name;
  uint64_t block_bytes = 0;
  int32_t block_tokens = 0;
  int64_t blocks = 0;
  std::function<uint64_t()> beats;  // of its engine; any thread
};

// Adds gauges that show a WorkerState, read at each scrape, and the same under vLLM's names for
// schedulers of the Gateway API. `state` is called on the threads of the registry's server, which
// ends first.
void AddWorkerMetrics(MetricsRegistry& registry, const WorkerFacts& facts,
                      std::function<v1::WorkerState()> state);

}  // namespace penstock
