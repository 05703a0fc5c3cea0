#pragma once

#include "base/metrics/metrics.h"
#include "worker/events/kv_event.h"

namespace penstock {

// What the port of KV events does. The series exist, at zero, also while it is off.
struct KvEventMetrics {
  explicit KvEventMetrics(MetricsRegistry& registry);
  void Count(const KvEvent& event);

  prometheus::Counter& stored;
  prometheus::Counter& removed;
  prometheus::Counter& cleared;
  prometheus::Counter& batches;
  prometheus::Counter& dropped;
  prometheus::Counter& replays;
  prometheus::Counter& refused;
  prometheus::Gauge& subscribers;
};

}  // namespace penstock
