#pragma once

#include <cstddef>
#include <vector>

#include "kernels/cuda/runtime.h"

namespace penstock::cuda {

// Copies memory of a device, which the host cannot read itself. All work on it must be complete.
// Selects the device.
inline std::vector<std::byte> BytesOf(int device, const void* p, size_t bytes) {
  SelectDevice(device);
  std::vector<std::byte> copy(bytes);
  CopyToHost(copy.data(), p, bytes, nullptr);
  Synchronize(nullptr);
  return copy;
}

}  // namespace penstock::cuda
