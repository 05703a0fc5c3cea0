#pragma once

#include "base/metrics/metrics.h"
#include "kvstore/paging/disk_pager.h"

namespace penstock {

// Adds the metrics of KV pages in a file, read at each scrape. `pager` outlives the registry's
// server; null: all pages are in memory, and the metrics stay zero.
void AddPagingMetrics(MetricsRegistry& registry, const DiskPager* pager);

}  // namespace penstock
