#pragma once

#include <cstddef>

#include "kernels/exported_memory.h"

// The emulated device's memory for wires. Only the emulated device, that is work that runs on a
// stream, may access it at its own address; any other access by the CPU ends the process.

namespace penstock::cuda::emulator {

void* MapForWires(size_t bytes);  // nullptr on failure
void UnmapForWires(void* p, size_t bytes);

// Names the memory of MapForWires that has `p` for other processes, which map it by its descriptor
// in /proc; false when there is none. Unlike CUDA's, this process may map it, too.
bool Export(const void* p, ExportedMemory* exported);
// Maps exported memory for the device; nullptr when it cannot. PENSTOCK_EMULATED_IMPORTS says how
// that fails: "refused", "astray" (other memory is mapped), or beyond 4 MiB only: "large refused",
// "large astray".
void* Import(const ExportName& name, size_t bytes);
void ReleaseImport(void* p, size_t bytes);

// During its lifetime the calling thread is the device.
class DeviceAtWork {
 public:
  DeviceAtWork();
  ~DeviceAtWork();
  DeviceAtWork(const DeviceAtWork&) = delete;
  DeviceAtWork& operator=(const DeviceAtWork&) = delete;
};

// The address of the same bytes for hardware that the CPU stands in for, such as a network card.
// Returns `p` itself when `p` is not emulated device memory.
std::byte* SeenByHardware(const void* p);

}  // namespace penstock::cuda::emulator
