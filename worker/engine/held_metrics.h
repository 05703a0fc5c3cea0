#pragma once

#include "base/metrics/metrics.h"
#include "kvstore/handoff/kv_receiver.h"
#include "kvstore/handoff/kv_sender.h"

namespace penstock {

// Pages that are kept for the other side of a handoff, read at each scrape: of prompts that a
// remote has not committed, by how long, and of ended handoffs that a write may still touch; and
// slabs that have landed. Both
// outlive the registry's server.
void AddHeldMetrics(MetricsRegistry& registry, const KvSender& sender, const KvReceiver& receiver);

}  // namespace penstock
