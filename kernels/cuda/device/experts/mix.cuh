#pragma once

// The gate of experts with biases, and the weighted sum of a row's experts.

#include "kernels/cuda/device/row_values.cuh"
#include "kernels/cuda/experts.h"

namespace penstock::cuda {

PENSTOCK_DEVICE Floats<4> OwnBias(const float* bias, int32_t expert, int32_t width,
                                  int32_t column) {
  return FloatsAt<4>(bias + static_cast<int64_t>(expert) * width + column);
}

// Comparisons keep a NaN.
PENSTOCK_DEVICE float ClampedGated(float gate, float up, float limit) {
  gate = gate > limit ? limit : gate;
  up = up > limit ? limit : up < -limit ? -limit : up;
  // If 2^x overflows to infinity, the quotient is 0, which is the right limit.
  const float decay = Exp2(Multiply(-1.702f * 1.4426950408889634f, gate));
  return Multiply(Divide(gate, Add(1.0f, decay)), Add(up, 1.0f));
}

// Grid: pairs x pieces of 4 * kRowThreads outputs.
__global__ void __launch_bounds__(kRowThreads)
    ClampedGateKernel(const __grid_constant__ ClampedGateParams p) {
  const int32_t width = p.product.width, half = width / 2;
  const int32_t i = 4 * (BlockY() * kRowThreads + ThreadX());
  if (i >= half) return;
  const int64_t place = BlockX();
  Floats<4> x = ProductAt<4>(p.product, place, i), up = ProductAt<4>(p.product, place, half + i);
  if (p.bias != nullptr) {
    const int32_t expert = p.owners[place];
    x.Add(OwnBias(p.bias, expert, width, i));
    up.Add(OwnBias(p.bias, expert, width, half + i));
  }
  PENSTOCK_UNROLL
  for (int j = 0; j < 4; ++j) x.value[j] = ClampedGated(x.value[j], up.value[j], p.limit);
  Store(p.output + place * half + i, PackBf16(x));
}

// Grid: rows x pieces of 4 * kRowThreads columns.
__global__ void __launch_bounds__(kRowThreads) MixKernel(const __grid_constant__ MixParams p) {
  const int32_t i = 4 * (BlockY() * kRowThreads + ThreadX());
  if (i >= p.product.width) return;
  const int64_t first = static_cast<int64_t>(BlockX()) * p.per_token;
  auto* output =
      reinterpret_cast<Floats<4>*>(p.output + static_cast<int64_t>(BlockX()) * p.product.width + i);
  Floats<4> sum{};
  if (p.adds) sum = *output;
  for (int64_t pair = first; pair < first + p.per_token; ++pair) {
    const int64_t place = p.places == nullptr ? pair : p.places[pair];
    Floats<4> x = ProductAt<4>(p.product, place, i);
    if (p.bias != nullptr) x.Add(OwnBias(p.bias, p.chosen[pair], p.product.width, i));
    PENSTOCK_UNROLL
    for (int j = 0; j < 4; ++j) {
      sum.value[j] = MultiplyAdd(p.weights[pair], x.value[j], sum.value[j]);
    }
  }
  *output = sum;
}

}  // namespace penstock::cuda
