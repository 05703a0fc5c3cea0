#pragma once

#include "base/metrics/metrics.h"
#include "model/experts/expert_cache.h"

namespace penstock {

// Adds the metrics of experts in memory and on disk, read at each scrape. `cache` outlives the
// registry's server; null: all experts are in memory, or there are none, and the metrics stay zero.
void AddExpertMetrics(MetricsRegistry& registry, const ExpertCache* cache);

}  // namespace penstock
