#pragma once

#include <atomic>
#include <cstdint>
#include <functional>

namespace penstock::cuda {

// What a void* stream of an emulated device points to. What is enqueued on it runs as late as a
// GPU may run it: when somebody waits for it. A library that has work of its own done, as NCCL
// does, enqueues it here in turn, or counts what threads of its own do, on a stream that nobody
// else uses.
struct EmulatedStream {
  virtual ~EmulatedStream() = default;
  virtual void Enqueue(std::function<void()> work) = 0;

  std::atomic<uint64_t> enqueued{0};
  std::atomic<uint64_t> done{0};
};

namespace emulator {

// On no stream (nullptr), at once.
void Enqueue(void* stream, std::function<void()> work);

// The next EndCapture of the calling thread fails.
void RefuseNextGraph();

}  // namespace emulator

}  // namespace penstock::cuda
