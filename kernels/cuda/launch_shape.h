#pragma once

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>

namespace penstock::cuda {

constexpr int kSharedBytesOfAll = 99 << 10;  // a block of any supported GPU may have them

// The grid and block size of a launch. `threads` is a multiple of 32.
struct LaunchShape {
  int x = 1;
  int y = 1;
  int z = 1;
  int threads = 32;
  size_t shared_bytes = 0;
};

struct alignas(16) Words4 {
  uint32_t word[4];
};
struct alignas(8) Words2 {
  uint32_t word[2];
};

}  // namespace penstock::cuda
