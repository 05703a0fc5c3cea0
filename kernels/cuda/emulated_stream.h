#pragma once

#include <atomic>
#include <cstdint>
#include <functional>

namespace penstock::cuda {

// What a void* stream of the emulated device points to. What is enqueued on it runs as late as a
// GPU may run it: when somebody waits for it. A library that enqueues work of its own, as NCCL
// does, counts it here, on a stream that nobody else uses.
struct EmulatedStream {
  std::atomic<uint64_t> enqueued{0};
  std::atomic<uint64_t> done{0};
};

namespace emulator {

// On no stream (nullptr), at once.
void Enqueue(void* stream, std::function<void()> work);

}  // namespace emulator

}  // namespace penstock::cuda
