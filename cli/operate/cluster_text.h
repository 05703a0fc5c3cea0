#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "base/clock.h"
#include "base/status.h"

namespace penstock {

// A router's picture of its cluster (Admin.Cluster) and when it was taken.
struct ClusterSeen {
  std::string json;
  TimePoint at;
};

// For a terminal: figures, workers and their tiers, links, and the hottest prefixes, as on the
// page. Rates are since `before`; without one they are left out. Whatever workers and tenants are
// called, it holds no control characters. With less than 130 columns, names are shorter, tiers have
// no bars, and lines of figures are broken. INVALID_ARGUMENT for what is not such a picture.
absl::StatusOr<std::string> ClusterText(const ClusterSeen& now,
                                        const std::optional<ClusterSeen>& before,
                                        size_t columns = SIZE_MAX);

}  // namespace penstock
