#include <atomic>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "base/check.h"
#include "base/mutex.h"
#include "kernels/cuda/runtime.h"
#include "tests/cuda/emulator/emulated_memory.h"
#include "tests/cuda/emulator/hardware_stream.h"

// Implements runtime.h with emulated devices, whose memory is this process's, so that a sanitizer
// checks the kernels' accesses. Streams run late: a reader that does not wait finds the old
// contents. There is one device, or as many as PENSTOCK_EMULATED_GPUS says. As with CUDA, a thread
// works on the device that it selected; enqueuing on a stream of another device ends the process,
// and so does host code that accesses a device's memory, or work that accesses another device's
// without peer access (emulated_memory.h).
//
// Work of a library's own threads, such as NCCL's kernels, blocks what is enqueued on its stream
// behind it. With PENSTOCK_EMULATED_QUEUES=1 it blocks what is enqueued behind it on any stream of
// the device, as a kernel may do in a hardware queue that streams share.

namespace penstock::cuda {
namespace {

constexpr size_t kAlignment = 256;
constexpr size_t kDeviceBytes = size_t{8} << 30;

// The result of EndCapture: work with its arguments, as it was enqueued.
struct Graph {
  std::vector<std::function<void()>> work;
  std::atomic<int> under_way{0};  // running launches
};
// The capture that the calling thread has open, and its stream.
struct Capture {
  EmulatedStream* stream = nullptr;
  std::unique_ptr<Graph> graph;
};

thread_local int selected = 0;
thread_local Capture capture;
std::atomic<bool> graph_refused = false;
thread_local const char* last_error = nullptr;

// Ends the process, because a real capture fails if the thread calls this while it captures.
void CheckNotCapturing(const char* what) {
  if (capture.graph != nullptr) PENSTOCK_CHECK_EQ(std::string(what), "something that is captured");
}

struct Stream : HardwareStream {
  explicit Stream(int of) : device(of) {}
  void Enqueue(std::function<void()> work) override {
    PENSTOCK_CHECK_EQ(device, selected);
    if (capture.stream == this) {
      capture.graph->work.push_back(std::move(work));
      return;
    }
    CheckNotCapturing("work on another stream");
    Add({.run = std::move(work)});
  }
  std::byte* Seen(const void* p) const override { return emulator::SeenByHardware(p); }
  bool captures() const override { return capture.stream == this; }

  // Work of other threads: so much of a stream's.
  struct Others {
    std::shared_ptr<Stream> stream;
    uint64_t work = 0;
  };
  struct Work {
    std::function<void()> run;
    uint64_t others = 0;              // of this stream's other work, comes before it
    std::vector<Others> queued = {};  // comes before it in the queue that all streams share
  };
  void Add(Work work);
  // Runs the work up to `until`, in order, as far as nothing blocks it. The other work that blocks
  // the next, which has `stream` unless it is this stream's; none: all has run.
  std::optional<Others> Run(uint64_t until);

  const int device;
  Mutex mutex;
  std::deque<Work> waiting GUARDED_BY(mutex);
  uint64_t begun GUARDED_BY(mutex) = 0;  // of all work that was ever in `waiting`
};

struct Event {
  int device = 0;
  Stream* stream = nullptr;  // null: not recorded yet, which counts as reached
  uint64_t work = 0;
  uint64_t others = 0;  // work of EmulatedStream
};

Stream* Of(void* stream) { return static_cast<Stream*>(static_cast<EmulatedStream*>(stream)); }

// The state of all devices. It outlives every thread.
struct Devices {
  Mutex mutex;
  // The streams of each device. A thread that waits for all of them shares their ownership.
  std::map<int, std::map<void*, std::shared_ptr<Stream>>> streams GUARDED_BY(mutex);
  struct Allocation {
    int device = 0;
    size_t bytes = 0;
  };
  std::map<const void*, Allocation> allocations GUARDED_BY(mutex);
  std::map<const std::byte*, size_t> pinned GUARDED_BY(mutex);
};
Devices& devices() {
  static auto* devices = new Devices();
  return *devices;
}

int DeviceCount() {
  const char* count = std::getenv("PENSTOCK_EMULATED_GPUS");
  return count == nullptr ? 1 : std::atoi(count);
}

// Emulates a broken GPU: every copy to the host has a wrong bit.
bool IsFaulty() { return std::getenv("PENSTOCK_EMULATED_FAULT") != nullptr; }

// Emulates the compute capability for which the library has kernels, 9.0, instead of 8.0. Of them,
// prefill attention is emulated (emulated_prefill.cc).
bool IsHopper() { return std::getenv("PENSTOCK_EMULATED_HOPPER") != nullptr; }

bool IsPinned(const void* p) {
  MutexLock lock(devices().mutex);
  const auto* byte = static_cast<const std::byte*>(p);
  auto after = devices().pinned.upper_bound(byte);
  if (after == devices().pinned.begin()) return false;
  --after;
  return byte < after->first + after->second;
}

bool IsOneQueue() { return std::getenv("PENSTOCK_EMULATED_QUEUES") != nullptr; }

void Stream::Add(Work work) {
  work.others = enqueued;
  if (IsOneQueue()) {
    MutexLock lock(devices().mutex);
    for (const auto& [handle, other] : devices().streams[device]) {
      const Others others{.stream = other, .work = other->enqueued};
      if (other.get() != this && other->done < others.work) work.queued.push_back(others);
    }
  }
  MutexLock lock(mutex);
  waiting.push_back(std::move(work));
}

std::optional<Stream::Others> Stream::Run(uint64_t until) {
  MutexLock lock(mutex);
  std::optional<emulator::DeviceAtWork> at_work;
  while (begun < until) {
    const Work& next = waiting.front();
    if (done < next.others) return Others{.stream = nullptr, .work = next.others};
    for (const Others& others : next.queued) {
      if (others.stream->done < others.work) return others;
    }
    const Work work = std::move(waiting.front());
    waiting.pop_front();
    ++begun;
    if (!at_work) at_work.emplace(device);
    work.run();
  }
  return std::nullopt;
}

// Waits for the work that other threads enqueued on `stream` before `at`. By polling: a library
// that was loaded at run time may have its own copy of std::atomic's waiters, and wakes only those.
void WaitUntil(EmulatedStream& stream, uint64_t at) {
  while (stream.done < at) std::this_thread::sleep_for(std::chrono::microseconds(100));
}

// Runs all work up to `until`, and waits for what blocks it.
void RunUntil(Stream& stream, uint64_t until) {
  while (const auto blocking = stream.Run(until)) {
    WaitUntil(blocking->stream == nullptr ? stream : *blocking->stream, blocking->work);
  }
}

uint64_t Enqueued(Stream& stream) {
  MutexLock lock(stream.mutex);
  return stream.begun + stream.waiting.size();
}

void RunAll(void* stream) {
  if (stream != nullptr) RunUntil(*Of(stream), Enqueued(*Of(stream)));
}

// As cudaFree: waits for the whole device, so that nothing uses the freed memory. Takes no lock,
// because the device's work may wait for another device's.
void RunEverything(int device) {
  std::map<void*, std::shared_ptr<Stream>> streams;
  {
    MutexLock lock(devices().mutex);
    streams = devices().streams[device];
  }
  for (const auto& [handle, stream] : streams) {
    RunAll(handle);
    WaitUntil(*stream, stream->enqueued);
  }
}

void* AllocateHost(size_t bytes) {
  void* p = std::aligned_alloc(kAlignment, (bytes + kAlignment - 1) / kAlignment * kAlignment);
  if (p != nullptr) std::memset(p, 0xff, bytes);  // NaN for any reader before the first write
  return p;
}

// Enqueues a copy from, or to, `host` memory.
void Copy(void* to, const void* from, size_t bytes, const void* host, void* stream) {
  if (bytes == 0) return;
  emulator::Enqueue(stream, [to, from, bytes] { std::memcpy(to, from, bytes); });
  if (IsPinned(host)) return;
  CheckNotCapturing("a copy of pageable memory");
  RunAll(stream);
}

}  // namespace

void emulator::Enqueue(void* stream, std::function<void()> work) {
  if (stream != nullptr) return Of(stream)->Enqueue(std::move(work));
  CheckNotCapturing("work on the default stream");
  const DeviceAtWork at_work(selected);
  work();
}

void* AllocateDevice(size_t bytes) {
  CheckNotCapturing("AllocateDevice");
  void* p = emulator::AllocateOn(selected, bytes);
  MutexLock lock(devices().mutex);
  if (p != nullptr) devices().allocations[p] = {.device = selected, .bytes = bytes};
  return p;
}
void FreeDevice(void* p) {
  if (p == nullptr) return;
  CheckNotCapturing("FreeDevice");
  int device = 0;
  {
    MutexLock lock(devices().mutex);
    device = devices().allocations.at(p).device;
  }
  RunEverything(device);
  MutexLock lock(devices().mutex);
  devices().allocations.erase(p);
  emulator::FreeOn(device, p);
}
void* AllocateForWires(size_t bytes) {
  CheckNotCapturing("AllocateForWires");
  return emulator::MapForWires(selected, bytes);
}
void FreeForWires(void* p, size_t bytes) {
  if (p == nullptr) return;
  CheckNotCapturing("FreeForWires");
  RunEverything(selected);
  emulator::UnmapForWires(p, bytes);
}
bool ExportForWires(const void* p, ExportedMemory* exported) {
  CheckNotCapturing("ExportForWires");
  return emulator::Export(p, exported);
}
void* ImportForWires(const ExportName& name, size_t bytes) {
  CheckNotCapturing("ImportForWires");
  void* const imported = emulator::Import(selected, name, bytes);
  if (imported == nullptr) last_error = "the other process's memory is out of reach";
  return imported;
}
void ReleaseImport(void* p, size_t bytes) {
  CheckNotCapturing("ReleaseImport");
  RunEverything(selected);
  emulator::ReleaseImport(p, bytes);
}
void* AllocatePinned(size_t bytes) {
  CheckNotCapturing("AllocatePinned");
  void* p = AllocateHost(bytes);
  MutexLock lock(devices().mutex);
  if (p != nullptr) devices().pinned[static_cast<std::byte*>(p)] = bytes;
  return p;
}
void FreePinned(void* p) {
  if (p == nullptr) return;
  CheckNotCapturing("FreePinned");
  for (int device = 0; device < DeviceCount(); ++device) RunEverything(device);
  MutexLock lock(devices().mutex);
  devices().pinned.erase(static_cast<std::byte*>(p));
  std::free(p);
}
bool PinHost(void* p, size_t bytes) {
  CheckNotCapturing("PinHost");
  MutexLock lock(devices().mutex);
  devices().pinned[static_cast<std::byte*>(p)] = bytes;
  return true;
}
void UnpinHost(void* p) {
  CheckNotCapturing("UnpinHost");
  for (int device = 0; device < DeviceCount(); ++device) RunEverything(device);
  MutexLock lock(devices().mutex);
  PENSTOCK_CHECK_EQ(devices().pinned.erase(static_cast<std::byte*>(p)), 1u);
}

void CopyToDevice(void* to, const void* from, size_t bytes, void* stream) {
  Copy(to, from, bytes, from, stream);
}
void CopyToHost(void* to, const void* from, size_t bytes, void* stream) {
  Copy(to, from, bytes, to, stream);
  if (bytes == 0 || !IsFaulty()) return;
  emulator::Enqueue(stream, [to] { *static_cast<std::byte*>(to) ^= std::byte{0x40}; });
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
  const auto stream = std::make_shared<Stream>(selected);
  void* handle = static_cast<EmulatedStream*>(stream.get());
  MutexLock lock(devices().mutex);
  devices().streams[selected][handle] = stream;
  return handle;
}
void DestroyStream(void* stream) {
  if (stream == nullptr) return;
  RunAll(stream);
  MutexLock lock(devices().mutex);
  devices().streams[Of(stream)->device].erase(stream);
}
void SynchronizeDevice() { RunEverything(selected); }
void Synchronize(void* stream) {
  CheckNotCapturing("Synchronize");
  if (stream == nullptr) return;
  RunAll(stream);
  WaitUntil(*Of(stream), Of(stream)->enqueued);
}
void* CreateEvent() { return new Event{.device = selected}; }
void* CreateSleepyEvent() { return CreateEvent(); }
void DestroyEvent(void* event) { delete static_cast<Event*>(event); }
void RecordEvent(void* event, void* stream) {
  if (stream == nullptr) return;
  CheckNotCapturing("RecordEvent");
  auto& recorded = *static_cast<Event*>(event);
  PENSTOCK_CHECK_EQ(recorded.device, Of(stream)->device);
  recorded = {.device = recorded.device,
              .stream = Of(stream),
              .work = Enqueued(*Of(stream)),
              .others = Of(stream)->enqueued};
}
void SynchronizeEvent(void* event) {
  CheckNotCapturing("SynchronizeEvent");
  const auto& recorded = *static_cast<Event*>(event);
  if (recorded.stream == nullptr) return;
  RunUntil(*recorded.stream, recorded.work);
  WaitUntil(*recorded.stream, recorded.others);
}
bool EventReached(void* event) {
  CheckNotCapturing("EventReached");
  const auto& recorded = *static_cast<Event*>(event);
  if (recorded.stream == nullptr) return true;
  return !recorded.stream->Run(recorded.work) && recorded.stream->done >= recorded.others;
}
float MillisecondsBetween(void*, void*) { return 0; }

void emulator::RefuseNextGraph() { graph_refused = true; }

void BeginCapture(void* stream) {
  CheckNotCapturing("BeginCapture");
  PENSTOCK_CHECK(stream != nullptr, "the default stream cannot be captured");
  capture = {.stream = Of(stream), .graph = std::make_unique<Graph>()};
}
void* EndCapture(void* stream) {
  PENSTOCK_CHECK(capture.graph != nullptr && capture.stream == Of(stream), "not captured");
  const Capture done = std::exchange(capture, Capture());
  if (!graph_refused.exchange(false)) return new Graph{.work = done.graph->work};
  last_error = "no graph";
  return nullptr;
}
void LaunchGraph(void* graph, void* stream) {
  CheckNotCapturing("LaunchGraph");
  auto* launched = static_cast<Graph*>(graph);
  ++launched->under_way;
  emulator::Enqueue(stream, [launched] {
    for (const auto& work : launched->work) work();
    --launched->under_way;
  });
}
void DestroyGraph(void* graph) {
  const auto* destroyed = static_cast<Graph*>(graph);
  if (destroyed != nullptr) PENSTOCK_CHECK_EQ(destroyed->under_way, 0);
  delete destroyed;
}

const char* TakeError() { return std::exchange(last_error, nullptr); }

bool OpenDevice(int device, DeviceInfo* info) {
  *info = DeviceInfo{.count = DeviceCount(), .compute_major = 8, .processors = 3};
  if (IsHopper()) info->compute_major = 9;
  if (device >= info->count) return false;
  std::strcpy(info->name, "emulator");
  selected = device;
  info->memory_bytes = info->free_bytes = kDeviceBytes;
  MutexLock lock(devices().mutex);
  for (const auto& [unused, allocation] : devices().allocations) {
    if (allocation.device == device) info->free_bytes -= allocation.bytes;
  }
  return true;
}

void SelectDevice(int device) { selected = device; }
bool EnablePeerAccess(int peer) {
  if (emulator::AllowPeer(selected, peer)) return true;
  last_error = "the devices have no peer access";
  return false;
}

}  // namespace penstock::cuda
