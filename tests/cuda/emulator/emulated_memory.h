#pragma once

#include <cstddef>

#include "kernels/exported_memory.h"

// The emulated devices' memory. Only a device that may, that is work that runs on one of its
// streams, accesses it at its own address: the device that allocated it, and those with peer access
// to that one. Any other access, as of host code, ends the process with a message (access_fault.h),
// unless a device that may is at work in another thread.

namespace penstock::cuda::emulator {

// Ordinary memory, aligned to 256 bytes; nullptr if there is none left.
void* AllocateOn(int device, size_t bytes);
void FreeOn(int device, void* p);

// Memory for wires, aligned to a page.
void* MapForWires(int device, size_t bytes);  // nullptr on failure
void UnmapForWires(void* p, size_t bytes);

// Names the memory of MapForWires that has `p` for other processes, which map it by its descriptor
// in /proc; false when there is none. Unlike CUDA's, this process may map it, too.
bool Export(const void* p, ExportedMemory* exported);
// Maps exported memory for the device; nullptr when it cannot. PENSTOCK_EMULATED_IMPORTS says how
// that fails: "refused", "astray" (other memory is mapped), or beyond 4 MiB only: "large refused",
// "large astray".
void* Import(int device, const ExportName& name, size_t bytes);
void ReleaseImport(void* p, size_t bytes);

// Gives `device` access to the memory of `peer`. PENSTOCK_EMULATED_PEERS says how that fails:
// "refused" (false is returned), or "astray": what is written to less than 2 MiB is lost.
bool AllowPeer(int device, int peer);

// During its lifetime the calling thread is the device.
class DeviceAtWork {
 public:
  explicit DeviceAtWork(int device);
  ~DeviceAtWork();
  DeviceAtWork(const DeviceAtWork&) = delete;
  DeviceAtWork& operator=(const DeviceAtWork&) = delete;

 private:
  const int device_;
  const int before_;  // device at work in this thread, or -1
};

// The address of the same bytes for hardware that the CPU stands in for, such as a network card.
// Returns `p` itself when `p` is not memory for wires.
std::byte* SeenByHardware(const void* p);

}  // namespace penstock::cuda::emulator
