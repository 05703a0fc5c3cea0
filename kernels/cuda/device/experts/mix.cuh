#pragma once

// The weighted sum of a row's experts.

#include "kernels/cuda/device/row_values.cuh"
#include "kernels/cuda/experts.h"

namespace penstock::cuda {

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
    const Floats<4> x = ProductAt<4>(p.product, place, i);
    PENSTOCK_UNROLL
    for (int j = 0; j < 4; ++j) {
      sum.value[j] = MultiplyAdd(p.weights[pair], x.value[j], sum.value[j]);
    }
  }
  *output = sum;
}

}  // namespace penstock::cuda
