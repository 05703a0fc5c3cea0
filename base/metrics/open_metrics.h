#pragma once

#include <string>
#include <string_view>

#include "base/metrics/metrics.h"

namespace penstock {

inline constexpr char kOpenMetricsType[] =
    "application/openmetrics-text; version=1.0.0; charset=utf-8";

// The metrics in the text format of OpenMetrics 1.0
// (https://github.com/prometheus/OpenMetrics/blob/v1.0.0/specification/OpenMetrics.md), in which
// buckets of histograms have exemplars. A counter whose name does not end in _total is "unknown".
std::string OpenMetricsText(const MetricsRegistry& registry);

// True if a scraper with this Accept header takes OpenMetrics 1.0 and likes it at least as much as
// the text format of Prometheus. (Prometheus names it first.)
bool PrefersOpenMetrics(std::string_view accept);

}  // namespace penstock
