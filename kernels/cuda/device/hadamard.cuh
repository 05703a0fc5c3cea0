#pragma once

#include "kernels/cuda/device/device.cuh"

namespace penstock::cuda {

// Multiplies a row by the normalised Hadamard matrix, which is its own inverse; stages in ascending
// order, as in kv_quant_ops.h, so that the bits are the same wherever a row is rotated. Lane l of a
// warp has elements [l * kElements, (l + 1) * kElements).
template <int kElements>
PENSTOCK_DEVICE void Hadamard(float (&x)[kElements], int lane) {
  PENSTOCK_UNROLL
  for (int half = 1; half < kElements; half *= 2) {
    PENSTOCK_UNROLL
    for (int i = 0; i < kElements; ++i) {
      if ((i & half) != 0) continue;
      const float a = x[i], b = x[i + half];
      x[i] = Add(a, b);
      x[i + half] = Add(a, -b);
    }
  }
  PENSTOCK_UNROLL
  for (int mask = 1; mask < 32; mask *= 2) {
    PENSTOCK_UNROLL
    for (int i = 0; i < kElements; ++i) {
      const float other = ShuffleXor(x[i], mask);
      x[i] = (lane & mask) != 0 ? Add(other, -x[i]) : Add(x[i], other);
    }
  }
  static_assert(kElements == 2 || kElements == 4);
  constexpr float kNormaliser = kElements == 2 ? 0.125f : 0.0883883476f;
  PENSTOCK_UNROLL
  for (int i = 0; i < kElements; ++i) x[i] = Multiply(x[i], kNormaliser);
}

}  // namespace penstock::cuda
