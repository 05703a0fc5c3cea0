#pragma once

// How kernels read values of rows: several at once, as f32.

#include "kernels/cuda/device/device.cuh"
#include "kernels/cuda/row_params.h"

namespace penstock::cuda {

// Threads per block: the same for every batch, so that every sum has the same tree.
constexpr int kRowThreads = 256;

// Neighbours in a row, which one instruction loads.
template <int kCount>
struct alignas(kCount * sizeof(float)) Floats {
  float value[kCount];

  PENSTOCK_DEVICE void Add(const Floats& other) {
    PENSTOCK_UNROLL
    for (int i = 0; i < kCount; ++i) value[i] = cuda::Add(value[i], other.value[i]);
  }
};
template <int kCount>
PENSTOCK_DEVICE Floats<kCount> FloatsAt(const float* from) {
  return *reinterpret_cast<const Floats<kCount>*>(from);
}

// `column` and the product's width are multiples of kCount.
template <int kCount>
PENSTOCK_DEVICE Floats<kCount> ProductAt(const Product& product, int64_t row, int32_t column) {
  const float* from = product.data + row * product.width + column;
  Floats<kCount> x{};
  for (int s = 0; s < product.slices; ++s) x.Add(FloatsAt<kCount>(from + s * product.slice_stride));
  if (product.bias != nullptr) x.Add(FloatsAt<kCount>(product.bias + column));
  return x;
}

PENSTOCK_DEVICE float WarpSum(float x) {
  PENSTOCK_UNROLL
  for (int mask = 16; mask > 0; mask /= 2) x = Add(x, ShuffleXor(x, mask));
  return x;
}

PENSTOCK_DEVICE Floats<4> WidenedAt(const Bf16* from) {
  const Words2 pairs = *reinterpret_cast<const Words2*>(from);
  return {{LowBf16(pairs.word[0]), HighBf16(pairs.word[0]), LowBf16(pairs.word[1]),
           HighBf16(pairs.word[1])}};
}

PENSTOCK_DEVICE Words2 PackBf16(const Floats<4>& x) {
  return {PackBf16(x.value[0], x.value[1]), PackBf16(x.value[2], x.value[3])};
}

}  // namespace penstock::cuda
