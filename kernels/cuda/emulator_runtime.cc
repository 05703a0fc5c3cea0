#include <cstdlib>
#include <cstring>

#include "kernels/cuda/runtime.h"

// One emulated device, whose memory is the host's: a sanitizer sees what kernels do to it.

namespace penstock::cuda {
namespace {

constexpr size_t kAlignment = 256;

}  // namespace

void* AllocateDevice(size_t bytes) {
  void* p = std::aligned_alloc(kAlignment, (bytes + kAlignment - 1) / kAlignment * kAlignment);
  if (p != nullptr) std::memset(p, 0xff, bytes);  // NaN, whoever reads before anything is written
  return p;
}
void FreeDevice(void* p) { std::free(p); }
void* AllocatePinned(size_t bytes) { return AllocateDevice(bytes); }
void FreePinned(void* p) { std::free(p); }

void CopyToDevice(void* to, const void* from, size_t bytes, void*) {
  if (bytes > 0) std::memcpy(to, from, bytes);
}
void CopyToHost(void* to, const void* from, size_t bytes, void*) {
  if (bytes > 0) std::memcpy(to, from, bytes);
}
void CopyOnDevice(void* to, const void* from, size_t bytes, void*) {
  if (bytes > 0) std::memmove(to, from, bytes);
}
void FillDevice(void* p, int byte, size_t bytes, void*) {
  if (bytes > 0) std::memset(p, byte, bytes);
}

void* CreateStream(bool) { return std::malloc(1); }
void DestroyStream(void* stream) { std::free(stream); }
void Synchronize(void*) {}
void* CreateEvent() { return std::malloc(1); }
void DestroyEvent(void* event) { std::free(event); }
void RecordEvent(void*, void*) {}
void SynchronizeEvent(void*) {}
float MillisecondsBetween(void*, void*) { return 0; }
const char* TakeError() { return nullptr; }

bool OpenDevice(int device, DeviceInfo* info) {
  *info = DeviceInfo{.count = 1, .compute_major = 8, .processors = 1};
  std::strcpy(info->name, "emulator");
  info->memory_bytes = info->free_bytes = size_t{8} << 30;
  return device == 0;
}

void SelectDevice(int) {}

}  // namespace penstock::cuda
