#pragma once

#include <cstddef>

#include "kernels/device_slabs.h"

struct ucp_context;

namespace penstock {

// What UCX is asked, and told, of a GPU's memory. In a file of its own, for which tests over an
// emulated GPU have another.

// Whether this library, with these transports, takes buffers there. One that does not would have
// the CPU read them.
bool UcxReachesDevices(ucp_context* context);

// As UCX shall see a buffer.
struct UcxBuffer {
  void* data = nullptr;
  int memory_type = 0;  // ucs_memory_type_t
};
UcxBuffer UcxBufferOf(const std::byte* data, MemoryKind memory);

}  // namespace penstock
