#pragma once

#include <cstddef>

#include "kernels/exported_memory.h"

// Device memory, streams, events and graphs. runtime_cuda.cu implements it with the CUDA runtime
// only, and the block emulator's emulator_runtime.cc with host memory. cuda_device.h adds owners
// and statuses. Any thread may call it after SelectDevice.
//
// This room, kernels/cuda, is the host's side of the CUDA kernels: launch arguments, plans, device
// memory, and the copies between pages and host. It may use base/ and kernels/ only, and compiles
// without CUDA. It does not know models, requests or the network.

namespace penstock::cuda {

// Returns memory aligned to 256 bytes, not cleared; nullptr if there is none left (see
// TakeError()).
void* AllocateDevice(size_t bytes);
void FreeDevice(void* p);  // memory of AllocateDevice, or nullptr; waits for the device
// Device memory that network cards and other GPUs access too; aligned to 4,096 bytes. nullptr if
// there is none left.
void* AllocateForWires(size_t bytes);
void FreeForWires(void* p, size_t bytes);
// Exports the allocation of AllocateForWires that has `p` to other processes of this host. Returns
// false if `p` is in none, or the device cannot export it (see TakeError()).
bool ExportForWires(const void* p, ExportedMemory* exported);
// Maps memory that another process exported, for the selected device; nullptr if that cannot reach
// it (see TakeError()). It stays mapped until ReleaseImport, also if the other process ends or
// frees it.
void* ImportForWires(const ExportName& name, size_t bytes);
void ReleaseImport(void* p, size_t bytes);
// Page-locked host memory, so that copies run beside the host. nullptr if there is none left.
void* AllocatePinned(size_t bytes);
void FreePinned(void* p);
// Locks pages that the caller has mapped, as AllocatePinned does its own. False on failure.
bool PinHost(void* p, size_t bytes);
void UnpinHost(void* p);

// Enqueue a copy. Host memory must stay unchanged until the stream has passed the copy; with
// pageable memory the call itself returns only when the memory has been read or written.
void CopyToDevice(void* to, const void* from, size_t bytes, void* stream);
void CopyToHost(void* to, const void* from, size_t bytes, void* stream);
void CopyOnDevice(void* to, const void* from, size_t bytes, void* stream);
void FillDevice(void* p, int byte, size_t bytes, void* stream);

void* CreateStream(bool high_priority);  // nullptr on failure
void DestroyStream(void* stream);
void Synchronize(void* stream);  // blocks until all enqueued work is complete
void SynchronizeDevice();        // blocks until all streams are complete

void* CreateEvent();  // nullptr on failure
// An event whose waiting thread sleeps instead of spinning; waking up takes about 10 us longer.
void* CreateSleepyEvent();
void DestroyEvent(void* event);
void RecordEvent(void* event, void* stream);
void SynchronizeEvent(void* event);  // blocks until the stream has passed the event
bool EventReached(void* event);      // true if the stream has passed it; false on an error too
float MillisecondsBetween(void* from, void* to);  // both events must have been passed

// Stream capture (CUDA graphs): work that this thread enqueues on `stream` between the two calls is
// recorded with its arguments instead of run; LaunchGraph runs it any number of times. Meanwhile
// this thread must not wait, allocate or copy pageable memory on the device.
void BeginCapture(void* stream);
void* EndCapture(void* stream);  // nullptr on failure
void LaunchGraph(void* graph, void* stream);
// Destroys a graph of EndCapture; nullptr is ignored. No launch of it may be running.
void DestroyGraph(void* graph);

// Returns the description of the first error since the last call, including errors of launches, or
// nullptr.
const char* TakeError();

struct DeviceInfo {
  int count = 0;          // devices in this machine
  char name[256] = {};    // of the requested device
  int compute_major = 0;  // compute capability
  int compute_minor = 0;
  int processors = 0;  // streaming multiprocessors (SMs)
  size_t memory_bytes = 0;
  size_t free_bytes = 0;
};
// Selects `device` for the calling thread and fills `info`. Returns false if it cannot be used; see
// TakeError().
bool OpenDevice(int device, DeviceInfo* info);
// Selects a device that some thread has opened, for the calling thread.
void SelectDevice(int device);
// Lets kernels of the selected device access the memory of `peer`, from now on. Returns false if
// the device cannot (see TakeError()).
bool EnablePeerAccess(int peer);

}  // namespace penstock::cuda
