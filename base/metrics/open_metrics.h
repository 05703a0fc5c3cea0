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

// True if this Accept header gives OpenMetrics 1.0 a weight, and at least that of the text format
// of Prometheus. The Accept header of Prometheus itself does.
bool PrefersOpenMetrics(std::string_view accept);

}  // namespace penstock
