#pragma once

#include <atomic>
#include <cstdint>
#include <functional>

namespace penstock::cuda {

// A void* stream of an emulated device points to this. Enqueued work runs as late as a GPU may run
// it: when a thread waits for it. A library with work of its own, such as NCCL, enqueues that work
// here too, or counts the work of its own threads on a stream that no other code uses.
struct EmulatedStream {
  virtual ~EmulatedStream() = default;
  virtual void Enqueue(std::function<void()> work) = 0;

  std::atomic<uint64_t> enqueued{0};
  std::atomic<uint64_t> done{0};
};

namespace emulator {

// Enqueues `work`; with no stream (nullptr) it runs at once.
void Enqueue(void* stream, std::function<void()> work);

// Makes the next EndCapture fail, of any thread.
void RefuseNextGraph();

}  // namespace emulator

}  // namespace penstock::cuda
