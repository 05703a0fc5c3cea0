#pragma once

#include <map>
#include <string>

#include "base/metrics/metrics.h"

namespace penstock {

// The `outcome` label of a request that a gateway asked about.
enum class PickOutcome {
  kPicked,      // the gateway has the endpoint
  kBadRequest,  // the API refuses it: malformed, unauthenticated, an unknown path
  kTooLarge,    // its head or body
  kNotReady,    // no pair of workers is ready, or this router drains
  kFull,        // queues or memory are full
  kLate,        // the predicted time to first token is above the client's limit
  kExcluded,    // the gateway's subset does not have this router
};

// The registry outlives it. Any thread.
struct PickerMetrics {
  explicit PickerMetrics(MetricsRegistry& registry);
  void Count(PickOutcome outcome) { outcomes.at(outcome)->Increment(); }

  std::map<PickOutcome, prometheus::Counter*> outcomes;
  prometheus::Gauge& streams;
  prometheus::Histogram& decision;
  prometheus::Histogram& predicted;
};

}  // namespace penstock
