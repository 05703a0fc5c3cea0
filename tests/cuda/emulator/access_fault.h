#pragma once

namespace penstock::cuda::emulator {

// Whose memory an access hit, and who made it.
struct AccessFault {
  int device = -1;  // that owns the memory; -1: the memory is not a device's
  int by = -1;      // device at work in the thread; -1: the thread is host code
};

// From now on an access to a device's closed memory ends the process with a message that says which
// access it is, and with the addresses of its callers. `fault_at` is called on the thread that made
// the access. Any other segmentation fault is left to the handler that was there before. Call it
// again, on any one thread at a time, because a library such as UCX may have set another handler.
void ReportAccessFaults(AccessFault (*fault_at)(const void* p));

}  // namespace penstock::cuda::emulator
