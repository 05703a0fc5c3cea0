#pragma once

#include "base/metrics/metrics.h"
#include "kvstore/wire/net/refusal.h"
#include "worker/model/gpu_host.h"

namespace penstock {

// Counts the peers that a wire turns away, by reason, and warns of them at most once a minute. The
// result and all copies of it are for the wire's thread.
OnWireRefusal CountRefusals(MetricsRegistry& registry);

// Adds the metric of slabs that cross host memory between a worker's GPUs, read at each scrape.
// `gpu` outlives the registry's server; null: the model is on a CPU.
void AddDetourMetric(MetricsRegistry& registry, const GpuHost* gpu);

}  // namespace penstock
