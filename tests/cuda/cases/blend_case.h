#pragma once

#include <cstdint>

namespace penstock::cuda {

// Tokens that move between slots of a pool in bf16, of which some pairs of elements are rotated.
struct BlendCase {
  int32_t kv_heads = 8, head_dim = 128, layers = 3, tokens = 100;
  int32_t pairs = 64;  // of the first table of rotations; the second has half of them
  uint64_t seed = 1;
};

struct BlendResult {
  bool values_equal = false;  // moved values have the bits that they had
  double keys = 0;            // largest difference from double precision, of the largest key
  double squares = 0;         // largest difference of a sum of squares, relative to it
};
BlendResult RunBlend(const BlendCase& c);

}  // namespace penstock::cuda
