#pragma once

#include <atomic>
#include <cstdint>
#include <functional>

namespace penstock::cuda {

// The object behind the void* stream of an emulated device. Work runs as late as a GPU may run it:
// when a thread waits for it. A library with asynchronous work of its own, such as NCCL, enqueues
// that work here, or counts it in `enqueued` and `done` on a stream that has no other users.
struct EmulatedStream {
  virtual ~EmulatedStream() = default;
  virtual void Enqueue(std::function<void()> work) = 0;

  std::atomic<uint64_t> enqueued{0};
  std::atomic<uint64_t> done{0};
};

namespace emulator {

// Enqueues `work`; with no stream (nullptr) it runs at once.
void Enqueue(void* stream, std::function<void()> work);

// Makes the next EndCapture of the calling thread fail.
void RefuseNextGraph();

}  // namespace emulator

}  // namespace penstock::cuda
