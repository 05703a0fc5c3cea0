#pragma once

#include <functional>

#include "base/metrics.h"
#include "proto/worker.pb.h"

namespace penstock {

// The gauges that say what a WorkerState says, read at each scrape. `state` outlives the registry's
// server and is called on its threads.
void AddWorkerMetrics(MetricsRegistry& registry, std::function<v1::WorkerState()> state);

}  // namespace penstock
