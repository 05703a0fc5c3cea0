#pragma once

#include <cstddef>

#include "tests/cuda/emulator/emulated_stream.h"

namespace penstock::cuda {

// A stream as seen by a library whose threads stand in for hardware, such as NCCL's fake. Every
// stream of an emulated device is one. Work that the library counts on it (EmulatedStream::enqueued
// and done) blocks what is enqueued on the stream afterwards, but does not wait for what was
// enqueued before.
struct HardwareStream : EmulatedStream {
  // emulator::SeenByHardware, which such a library is not linked with.
  virtual std::byte* Seen(const void* p) const = 0;
  // True if what the calling thread enqueues is captured for a graph.
  virtual bool captures() const = 0;
};

}  // namespace penstock::cuda
