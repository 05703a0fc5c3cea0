#pragma once

#include <cstddef>

// Device memory and streams, with nothing but the CUDA runtime behind it (runtime_cuda.cu), or the
// host's memory under the emulator (emulator_runtime.cc). cuda_device.h has owners and statuses.

namespace penstock::cuda {

// nullptr where there is no such memory left; see TakeError(). 256-byte aligned, not cleared.
void* AllocateDevice(size_t bytes);
void FreeDevice(void* p);  // of AllocateDevice, or nullptr; waits for the device
// The same for what wires, too, read and write; 4,096-byte aligned.
void* AllocateForWires(size_t bytes);
void FreeForWires(void* p, size_t bytes);
// Page-locked, so that copies run beside the host. nullptr as above.
void* AllocatePinned(size_t bytes);
void FreePinned(void* p);

// Enqueued; host memory stays as it is until the stream is past it, unless it is pageable: then the
// call returns when it has been read, or written.
void CopyToDevice(void* to, const void* from, size_t bytes, void* stream);
void CopyToHost(void* to, const void* from, size_t bytes, void* stream);
void CopyOnDevice(void* to, const void* from, size_t bytes, void* stream);
void FillDevice(void* p, int byte, size_t bytes, void* stream);

void* CreateStream(bool high_priority);  // nullptr on failure
void DestroyStream(void* stream);
void Synchronize(void* stream);  // until all that was enqueued is done
void SynchronizeDevice();        // the same of every stream

void* CreateEvent();  // nullptr on failure
// The same; whoever waits for it leaves the CPU to others, and wakes up some 10 us later for that.
void* CreateSleepyEvent();
void DestroyEvent(void* event);
void RecordEvent(void* event, void* stream);
void SynchronizeEvent(void* event);               // until the stream was there
bool EventReached(void* event);                   // whether it was; false on an error, too
float MillisecondsBetween(void* from, void* to);  // of events that were reached

// Between the two calls what this thread enqueues on `stream` is not run but kept, with its
// arguments, to be launched as one any number of times. Nothing else may be done on the device
// meanwhile by this thread: no waiting, no allocation, no copy of pageable memory.
void BeginCapture(void* stream);
void* EndCapture(void* stream);  // nullptr on failure
void LaunchGraph(void* graph, void* stream);
void DestroyGraph(void* graph);  // of EndCapture, or nullptr; no launch of it is under way

// The description of the first error since the last call, of launches too; nullptr for none.
const char* TakeError();

struct DeviceInfo {
  int count = 0;          // devices
  char name[256] = {};    // of the asked one
  int compute_major = 0;  // compute capability
  int compute_minor = 0;
  int processors = 0;  // SMs
  size_t memory_bytes = 0;
  size_t free_bytes = 0;
};
// Selects `device` for the calling thread. False with TakeError() where there is none.
bool OpenDevice(int device, DeviceInfo* info);
// The same of one that was opened, by another thread perhaps.
void SelectDevice(int device);

}  // namespace penstock::cuda
