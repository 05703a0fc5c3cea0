#include <cuda_runtime.h>

#include <cstring>
#include <map>
#include <mutex>

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

// Waits until a copy of pageable memory is complete, on a GPU that may read such memory itself
// ("API synchronization behavior" in the CUDA runtime's manual). Other GPUs have read it before the
// call of the copy returns.
void AwaitPageable(const void* host, void* stream) {
  int device = 0, direct = 0;
  cudaGetDevice(&device);
  cudaDeviceGetAttribute(&direct, cudaDevAttrPageableMemoryAccess, device);
  if (direct == 0) return;
  cudaPointerAttributes attributes{};
  const bool known = cudaPointerGetAttributes(&attributes, host) == cudaSuccess;
  if (known && attributes.type != cudaMemoryTypeUnregistered) return;
  Note(cudaStreamSynchronize(Of(stream)));
}

// Memory for wires is allocated in multiples of this: CUDA exports the whole 2 MiB that an
// allocation has a part of, with what else of this process is in there.
constexpr size_t kExportUnit = size_t{2} << 20;

struct Export {
  ExportedMemory exported;
  bool named = false;
};
// The memory for wires of this process. It outlives every thread.
struct Exports {
  std::mutex mutex;
  std::map<const std::byte*, Export> all;
  uint64_t last_number = 0;
};
Exports& exports() {
  static auto* exports = new Exports();
  return *exports;
}
// The allocation that has `p`, or nullptr. The caller holds the lock.
Export* ExportOf(const std::byte* p) {
  const auto after = exports().all.upper_bound(p);
  if (after == exports().all.begin()) return nullptr;
  Export& before = std::prev(after)->second;
  return p < before.exported.data + before.exported.bytes ? &before : nullptr;
}

}  // namespace

void* AllocateDevice(size_t bytes) {
  void* p = nullptr;
  return Note(cudaMalloc(&p, bytes == 0 ? 1 : bytes)) ? p : nullptr;
}
void FreeDevice(void* p) {
  if (p != nullptr) Note(cudaFree(p));
}
void* AllocateForWires(size_t bytes) {
  const size_t whole = (bytes + kExportUnit - 1) / kExportUnit * kExportUnit;
  void* p = AllocateDevice(whole);
  if (p == nullptr) return nullptr;
  const std::lock_guard lock(exports().mutex);
  const auto* const data = static_cast<const std::byte*>(p);
  exports().all[data] = {
      .exported = {.data = data, .bytes = whole, .number = ++exports().last_number}};
  return p;
}
void FreeForWires(void* p, size_t) {
  if (p == nullptr) return;
  {
    const std::lock_guard lock(exports().mutex);
    exports().all.erase(static_cast<const std::byte*>(p));
  }
  FreeDevice(p);
}
bool ExportForWires(const void* p, ExportedMemory* exported) {
  const std::lock_guard lock(exports().mutex);
  Export* const found = ExportOf(static_cast<const std::byte*>(p));
  if (found == nullptr) return false;
  if (!found->named) {
    cudaIpcMemHandle_t handle;
    void* const data = const_cast<std::byte*>(found->exported.data);
    if (!Note(cudaIpcGetMemHandle(&handle, data))) return false;
    std::memcpy(found->exported.name.data(), &handle, sizeof(handle));
    found->named = true;
  }
  *exported = found->exported;
  return true;
}
void* ImportForWires(const ExportName& name, size_t) {
  cudaIpcMemHandle_t handle;
  static_assert(sizeof(handle) == sizeof(ExportName));
  std::memcpy(&handle, name.data(), sizeof(handle));
  void* p = nullptr;
  return Note(cudaIpcOpenMemHandle(&p, handle, cudaIpcMemLazyEnablePeerAccess)) ? p : nullptr;
}
void ReleaseImport(void* p, size_t) { Note(cudaIpcCloseMemHandle(p)); }
void* AllocatePinned(size_t bytes) {
  void* p = nullptr;
  return Note(cudaMallocHost(&p, bytes == 0 ? 1 : bytes)) ? p : nullptr;
}
void FreePinned(void* p) {
  if (p != nullptr) Note(cudaFreeHost(p));
}
bool PinHost(void* p, size_t bytes) {
  return Note(cudaHostRegister(p, bytes, cudaHostRegisterDefault));
}
void UnpinHost(void* p) { Note(cudaHostUnregister(p)); }

void CopyToDevice(void* to, const void* from, size_t bytes, void* stream) {
  if (bytes == 0) return;
  Note(cudaMemcpyAsync(to, from, bytes, cudaMemcpyHostToDevice, Of(stream)));
  AwaitPageable(from, stream);
}
void CopyToHost(void* to, const void* from, size_t bytes, void* stream) {
  if (bytes == 0) return;
  Note(cudaMemcpyAsync(to, from, bytes, cudaMemcpyDeviceToHost, Of(stream)));
  AwaitPageable(to, stream);
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
bool EnablePeerAccess(int peer) {
  int device = 0, can = 0;
  if (!Note(cudaGetDevice(&device)) || !Note(cudaDeviceCanAccessPeer(&can, device, peer))) {
    return false;
  }
  if (can == 0) return Note(cudaErrorPeerAccessUnsupported);
  const cudaError_t error = cudaDeviceEnablePeerAccess(peer, 0);
  if (error != cudaErrorPeerAccessAlreadyEnabled) return Note(error);
  cudaGetLastError();  // NCCL, for example, has enabled it.
  return true;
}

}  // namespace penstock::cuda
