#pragma once

#include <atomic>
#include <cstdint>

namespace penstock::cuda {

// What a void* stream of the emulated device points to. Our own calls are over when they return; a
// library that enqueues work of its own, as NCCL does, counts it here, in the order of the stream.
struct EmulatedStream {
  std::atomic<uint64_t> enqueued{0};
  std::atomic<uint64_t> done{0};
};

}  // namespace penstock::cuda
