#pragma once

#include <memory>

#include "kvstore/wire/host/host_wire.h"
#include "kvstore/wire/wire.h"

namespace penstock {

// A wire whose messages start and land in the emulated GPU's memory: their users see host memory as
// with any other wire. The bytes of a message that has ended are overwritten on the GPU, as the
// next slab there would. With the lanes "shm", or "nccl" between hosts.
std::unique_ptr<Wire> MakeGpuWire(WireReceiver& receiver, HostWireOptions options);

}  // namespace penstock
