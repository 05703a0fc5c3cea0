#include <cstdlib>
#include <cstring>
#include <deque>
#include <map>
#include <set>
#include <utility>

#include "base/mutex.h"
#include "kernels/cuda/emulated_stream.h"
#include "kernels/cuda/runtime.h"

// One emulated device, whose memory is the host's: a sanitizer sees what kernels do to it. Streams
// are late: whoever reads, or reuses, before he has waited finds what was there before.

namespace penstock::cuda {
namespace {

constexpr size_t kAlignment = 256;

struct Stream : EmulatedStream {
  Mutex mutex;
  std::deque<std::function<void()>> work GUARDED_BY(mutex);
  uint64_t begun GUARDED_BY(mutex) = 0;  // of all that was ever in `work`
};

struct Event {
  Stream* stream = nullptr;  // null: not recorded yet, which is as good as reached
  uint64_t work = 0;
  uint64_t others = 0;  // of EmulatedStream
};

Stream* Of(void* stream) { return static_cast<Stream*>(static_cast<EmulatedStream*>(stream)); }

// What the device knows, for as long as there are threads.
struct Device {
  Mutex mutex;
  std::set<Stream*> streams GUARDED_BY(mutex);
  std::map<const std::byte*, size_t> pinned GUARDED_BY(mutex);
};
Device& device() {
  static auto* device = new Device();
  return *device;
}

bool IsPinned(const void* p) {
  MutexLock lock(device().mutex);
  const auto* byte = static_cast<const std::byte*>(p);
  auto after = device().pinned.upper_bound(byte);
  if (after == device().pinned.begin()) return false;
  --after;
  return byte < after->first + after->second;
}

// All work up to `until`, in order.
void RunUntil(Stream& stream, uint64_t until) {
  MutexLock lock(stream.mutex);
  while (stream.begun < until) {
    const auto work = std::move(stream.work.front());
    stream.work.pop_front();
    ++stream.begun;
    work();
  }
}

uint64_t Enqueued(Stream& stream) {
  MutexLock lock(stream.mutex);
  return stream.begun + stream.work.size();
}

void RunAll(void* stream) {
  if (stream != nullptr) RunUntil(*Of(stream), Enqueued(*Of(stream)));
}

// What others have enqueued.
void WaitUntil(EmulatedStream& stream, uint64_t at) {
  for (uint64_t done = stream.done; done < at; done = stream.done) stream.done.wait(done);
}

// As cudaFree: the whole device is waited for, so that nothing uses what goes.
void RunEverything() {
  MutexLock lock(device().mutex);
  for (Stream* stream : device().streams) RunAll(static_cast<EmulatedStream*>(stream));
}

void* Allocate(size_t bytes) {
  void* p = std::aligned_alloc(kAlignment, (bytes + kAlignment - 1) / kAlignment * kAlignment);
  if (p != nullptr) std::memset(p, 0xff, bytes);  // NaN, whoever reads before anything is written
  return p;
}

// A copy from, or to, `host`.
void Copy(void* to, const void* from, size_t bytes, const void* host, void* stream) {
  if (bytes == 0) return;
  emulator::Enqueue(stream, [to, from, bytes] { std::memcpy(to, from, bytes); });
  if (!IsPinned(host)) RunAll(stream);
}

}  // namespace

void emulator::Enqueue(void* stream, std::function<void()> work) {
  if (stream == nullptr) return work();
  MutexLock lock(Of(stream)->mutex);
  Of(stream)->work.push_back(std::move(work));
}

void* AllocateDevice(size_t bytes) { return Allocate(bytes); }
void FreeDevice(void* p) {
  if (p == nullptr) return;
  RunEverything();
  std::free(p);
}
void* AllocatePinned(size_t bytes) {
  void* p = Allocate(bytes);
  MutexLock lock(device().mutex);
  if (p != nullptr) device().pinned[static_cast<std::byte*>(p)] = bytes;
  return p;
}
void FreePinned(void* p) {
  if (p == nullptr) return;
  RunEverything();
  MutexLock lock(device().mutex);
  device().pinned.erase(static_cast<std::byte*>(p));
  std::free(p);
}

void CopyToDevice(void* to, const void* from, size_t bytes, void* stream) {
  Copy(to, from, bytes, from, stream);
}
void CopyToHost(void* to, const void* from, size_t bytes, void* stream) {
  Copy(to, from, bytes, to, stream);
}
void CopyOnDevice(void* to, const void* from, size_t bytes, void* stream) {
  if (bytes == 0) return;
  emulator::Enqueue(stream, [to, from, bytes] { std::memmove(to, from, bytes); });
}
void FillDevice(void* p, int byte, size_t bytes, void* stream) {
  if (bytes == 0) return;
  emulator::Enqueue(stream, [p, byte, bytes] { std::memset(p, byte, bytes); });
}

void* CreateStream(bool) {
  auto* stream = new Stream();
  MutexLock lock(device().mutex);
  device().streams.insert(stream);
  return static_cast<EmulatedStream*>(stream);
}
void DestroyStream(void* stream) {
  if (stream == nullptr) return;
  RunAll(stream);
  {
    MutexLock lock(device().mutex);
    device().streams.erase(Of(stream));
  }
  delete Of(stream);
}
void Synchronize(void* stream) {
  if (stream == nullptr) return;
  RunAll(stream);
  WaitUntil(*Of(stream), Of(stream)->enqueued);
}
void* CreateEvent() { return new Event(); }
void DestroyEvent(void* event) { delete static_cast<Event*>(event); }
void RecordEvent(void* event, void* stream) {
  if (stream == nullptr) return;
  *static_cast<Event*>(event) = {
      .stream = Of(stream), .work = Enqueued(*Of(stream)), .others = Of(stream)->enqueued};
}
void SynchronizeEvent(void* event) {
  const auto& recorded = *static_cast<Event*>(event);
  if (recorded.stream == nullptr) return;
  RunUntil(*recorded.stream, recorded.work);
  WaitUntil(*recorded.stream, recorded.others);
}
bool EventReached(void* event) {
  const auto& recorded = *static_cast<Event*>(event);
  if (recorded.stream == nullptr) return true;
  RunUntil(*recorded.stream, recorded.work);
  return recorded.stream->done >= recorded.others;
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
