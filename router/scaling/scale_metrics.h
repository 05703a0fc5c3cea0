#pragma once

#include <string>
#include <vector>

#include "base/metrics/metrics.h"
#include "router/scaling/scale_decider.h"

namespace penstock {

// Metrics of the decisions on replicas.
struct ScaleMetrics {
  // The series of one role.
  struct Role {
    Role(MetricsRegistry& registry, const std::string& role);
    void Show(const RoleDecision& decision);

    prometheus::Gauge& replicas;
    prometheus::Gauge& work;
    prometheus::Counter& ups;
    prometheus::Counter& downs;
    std::vector<prometheus::Gauge*> reasons;  // by ScaleReason
  };

  explicit ScaleMetrics(MetricsRegistry& registry);

  Role prefill;
  Role decode;
  prometheus::Gauge& leads;
};

}  // namespace penstock
