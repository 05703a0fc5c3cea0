#pragma once

#include "base/metrics/metrics.h"
#include "kvstore/wire/net/refusal.h"

namespace penstock {

// Counts the peers that a wire turns away, by reason, and warns of them at most once a minute. The
// result and all copies of it are for the wire's thread.
OnWireRefusal CountRefusals(MetricsRegistry& registry);

}  // namespace penstock
