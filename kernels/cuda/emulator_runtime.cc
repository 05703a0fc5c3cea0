#include <cstdlib>
#include <cstring>

#include "kernels/cuda/emulated_stream.h"
#include "kernels/cuda/runtime.h"

// One emulated device, whose memory is the host's: a sanitizer sees what kernels do to it.

namespace penstock::cuda {
namespace {

constexpr size_t kAlignment = 256;

struct Event {
  EmulatedStream* stream = nullptr;  // null: not recorded yet, which is as good as reached
  uint64_t at = 0;
};

// What others have enqueued.
void WaitUntil(EmulatedStream& stream, uint64_t at) {
  for (uint64_t done = stream.done; done < at; done = stream.done) stream.done.wait(done);
}

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

void* CreateStream(bool) { return new EmulatedStream(); }
void DestroyStream(void* stream) { delete static_cast<EmulatedStream*>(stream); }
void Synchronize(void* stream) {
  auto* emulated = static_cast<EmulatedStream*>(stream);
  if (emulated != nullptr) WaitUntil(*emulated, emulated->enqueued);
}
void* CreateEvent() { return new Event(); }
void DestroyEvent(void* event) { delete static_cast<Event*>(event); }
void RecordEvent(void* event, void* stream) {
  auto* emulated = static_cast<EmulatedStream*>(stream);
  const uint64_t at = emulated == nullptr ? 0 : emulated->enqueued.load();
  *static_cast<Event*>(event) = {.stream = emulated, .at = at};
}
void SynchronizeEvent(void* event) {
  const auto& recorded = *static_cast<Event*>(event);
  if (recorded.stream != nullptr) WaitUntil(*recorded.stream, recorded.at);
}
bool EventReached(void* event) {
  const auto& recorded = *static_cast<Event*>(event);
  return recorded.stream == nullptr || recorded.stream->done >= recorded.at;
}
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
