#pragma once

#include <functional>
#include <string>

#include "base/metrics/metrics.h"
#include "proto/worker.pb.h"

namespace penstock {

// What the gauges of a worker say beside its state.
struct WorkerFacts {
  std::string model_name;
  uint64_t block_bytes = 0;
  int32_t block_tokens = 0;
  int64_t blocks = 0;
  std::function<uint64_t()> beats;  // of its engine; any thread
};

// The gauges that say what a WorkerState says, read at each scrape, with vLLM's names for what
// schedulers of the Gateway API read. `state` outlives the registry's server and is called on its
// threads.
void AddWorkerMetrics(MetricsRegistry& registry, const WorkerFacts& facts,
                      std::function<v1::WorkerState()> state);

}  // namespace penstock
