#pragma once

#include <cstddef>

// The emulated device's memory for wires: at its own address only the device may touch it, that is,
// what runs on a stream. A CPU that does so otherwise ends the process there and then.

namespace penstock::cuda::emulator {

void* MapForWires(size_t bytes);  // nullptr on failure
void UnmapForWires(void* p, size_t bytes);

// While it lives, the device works.
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
