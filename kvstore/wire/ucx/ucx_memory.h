#pragma once

#include <cstddef>

#include "kernels/device_slabs.h"

struct ucp_context;

namespace penstock {

// UCX's knowledge of GPU memory. It has a source file of its own, which tests with an emulated GPU
// replace.

// True when this library, with these transports, accepts buffers in GPU memory. A library that does
// not would read them with the CPU.
bool UcxReachesDevices(ucp_context* context);

// A buffer as it is passed to UCX.
struct UcxBuffer {
  void* data = nullptr;
  int memory_type = 0;  // ucs_memory_type_t
};
UcxBuffer UcxBufferOf(const std::byte* data, MemoryKind memory);

}  // namespace penstock
