#pragma once

#include <memory>

#include "kvstore/wire/wire.h"
#include "kvstore/wire/wire_budget.h"

namespace penstock {

// A wire within one host whose messages start and land in the emulated GPU's memory: their users
// see host memory as with any other wire. The bytes of a message that has ended are overwritten on
// the GPU, as the next slab there would.
std::unique_ptr<Wire> MakeGpuWire(WireReceiver& receiver, const WireLimits& limits);

}  // namespace penstock
