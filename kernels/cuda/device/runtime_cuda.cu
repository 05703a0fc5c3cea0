#include <cuda_runtime.h>

#include <cstring>

#include "kernels/cuda/runtime.h"

namespace penstock::cuda {
namespace {

// The first failed call of this thread whose error cudaGetLastError does not keep.
thread_local cudaError_t first_error = cudaSuccess;

bool Note(cudaError_t error) {
  if (error != cudaSuccess && first_error == cudaSuccess) first_error = error;
  return error == cudaSuccess;
}
cudaStream_t Of(void* stream) { return static_cast<cudaStream_t>(stream); }

}  // namespace

void* AllocateDevice(size_t bytes) {
  void* p = nullptr;
  return Note(cudaMalloc(&p, bytes == 0 ? 1 : bytes)) ? p : nullptr;
}
void FreeDevice(void* p) {
  if (p != nullptr) Note(cudaFree(p));
}
void* AllocateForWires(size_t bytes) { return AllocateDevice(bytes); }
void FreeForWires(void* p, size_t) { FreeDevice(p); }
void* AllocatePinned(size_t bytes) {
  void* p = nullptr;
  return Note(cudaMallocHost(&p, bytes == 0 ? 1 : bytes)) ? p : nullptr;
}
void FreePinned(void* p) {
  if (p != nullptr) Note(cudaFreeHost(p));
}

void CopyToDevice(void* to, const void* from, size_t bytes, void* stream) {
  if (bytes > 0) Note(cudaMemcpyAsync(to, from, bytes, cudaMemcpyHostToDevice, Of(stream)));
}
void CopyToHost(void* to, const void* from, size_t bytes, void* stream) {
  if (bytes > 0) Note(cudaMemcpyAsync(to, from, bytes, cudaMemcpyDeviceToHost, Of(stream)));
}
void CopyOnDevice(void* to, const void* from, size_t bytes, void* stream) {
  if (bytes > 0) Note(cudaMemcpyAsync(to, from, bytes, cudaMemcpyDeviceToDevice, Of(stream)));
}
void FillDevice(void* p, int byte, size_t bytes, void* stream) {
  if (bytes > 0) Note(cudaMemsetAsync(p, byte, bytes, Of(stream)));
}

void* CreateStream(bool high_priority) {
  int min = 0, greatest = 0;
  Note(cudaDeviceGetStreamPriorityRange(&min, &greatest));
  cudaStream_t stream = nullptr;
  const int priority = high_priority ? greatest : min;
  return Note(cudaStreamCreateWithPriority(&stream, cudaStreamNonBlocking, priority)) ? stream
                                                                                      : nullptr;
}
void DestroyStream(void* stream) {
  if (stream != nullptr) Note(cudaStreamDestroy(Of(stream)));
}
void SynchronizeDevice() { Note(cudaDeviceSynchronize()); }
void Synchronize(void* stream) { Note(cudaStreamSynchronize(Of(stream))); }

void* CreateEvent() {
  cudaEvent_t event = nullptr;
  return Note(cudaEventCreate(&event)) ? event : nullptr;
}
void* CreateSleepyEvent() {
  cudaEvent_t event = nullptr;
  const unsigned flags = cudaEventBlockingSync | cudaEventDisableTiming;
  return Note(cudaEventCreateWithFlags(&event, flags)) ? event : nullptr;
}
void DestroyEvent(void* event) {
  if (event != nullptr) Note(cudaEventDestroy(static_cast<cudaEvent_t>(event)));
}
void RecordEvent(void* event, void* stream) {
  Note(cudaEventRecord(static_cast<cudaEvent_t>(event), Of(stream)));
}
void SynchronizeEvent(void* event) { Note(cudaEventSynchronize(static_cast<cudaEvent_t>(event))); }
bool EventReached(void* event) {
  Note(cudaGetLastError());
  const cudaError_t state = cudaEventQuery(static_cast<cudaEvent_t>(event));
  if (state != cudaErrorNotReady) return Note(state);
  cudaGetLastError();  // CUDA keeps "not ready" as if it were an error.
  return false;
}
float MillisecondsBetween(void* from, void* to) {
  float ms = 0;
  Note(cudaEventElapsedTime(&ms, static_cast<cudaEvent_t>(from), static_cast<cudaEvent_t>(to)));
  return ms;
}

// Captures only this thread's work; other threads may allocate and wait meanwhile.
void BeginCapture(void* stream) {
  Note(cudaStreamBeginCapture(Of(stream), cudaStreamCaptureModeThreadLocal));
}
void* EndCapture(void* stream) {
  cudaGraph_t graph = nullptr;
  if (!Note(cudaStreamEndCapture(Of(stream), &graph))) return nullptr;
  cudaGraphExec_t launchable = nullptr;
  const bool made = Note(cudaGraphInstantiate(&launchable, graph, 0));
  Note(cudaGraphDestroy(graph));
  if (!made) return nullptr;
  Note(cudaGraphUpload(launchable, Of(stream)));  // now rather than at the first launch
  return launchable;
}
void LaunchGraph(void* graph, void* stream) {
  Note(cudaGraphLaunch(static_cast<cudaGraphExec_t>(graph), Of(stream)));
}
void DestroyGraph(void* graph) {
  if (graph != nullptr) Note(cudaGraphExecDestroy(static_cast<cudaGraphExec_t>(graph)));
}

const char* TakeError() {
  Note(cudaGetLastError());
  if (first_error == cudaSuccess) return nullptr;
  const char* text = cudaGetErrorString(first_error);
  first_error = cudaSuccess;
  return text;
}

bool OpenDevice(int device, DeviceInfo* info) {
  *info = DeviceInfo{};
  if (!Note(cudaGetDeviceCount(&info->count))) return false;
  cudaDeviceProp properties;
  if (!Note(cudaGetDeviceProperties(&properties, device))) return false;
  if (!Note(cudaSetDevice(device))) return false;
  std::strncpy(info->name, properties.name, sizeof(info->name) - 1);
  info->compute_major = properties.major;
  info->compute_minor = properties.minor;
  info->processors = properties.multiProcessorCount;
  return Note(cudaMemGetInfo(&info->free_bytes, &info->memory_bytes));
}

void SelectDevice(int device) { Note(cudaSetDevice(device)); }

}  // namespace penstock::cuda
