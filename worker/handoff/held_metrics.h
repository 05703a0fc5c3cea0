#pragma once

#include "base/metrics/metrics.h"
#include "kvstore/handoff/kv_receiver.h"
#include "kvstore/handoff/kv_sender.h"

namespace penstock {

// Adds gauges, read at each scrape, for pages that handoffs hold: pages that the peer has not
// committed, by age, and pages of ended handoffs that a write may still touch. Also counts landed
// slabs. `sender` and `receiver` outlive the registry's server.
void AddHeldMetrics(MetricsRegistry& registry, const KvSender& sender, const KvReceiver& receiver);

}  // namespace penstock
