#pragma once

// MLP activations other than SwiGLU.

#include "kernels/cuda/device/row_ops.cuh"

namespace penstock::cuda {

// GELU approximated by tanh (Hendrycks and Gimpel, arXiv 1606.08415):
// x / 2 * (1 + tanh(u)) = x / (1 + exp(-2u)) with u = sqrt(2 / pi) * (x + 0.044715 x^3).
PENSTOCK_DEVICE float GeluTanh(float x) {
  const float cubic = Add(Multiply(Multiply(x, x), 0.044715f), 1.0f);
  // If 2^e overflows to infinity, the quotient is 0, which is the right limit.
  const float decay = Exp2(Multiply(Multiply(x, -1.59576912f * 1.4426950408889634f), cubic));
  return Divide(x, Add(1.0f, decay));
}

// x * (1 + erf(x / sqrt(2))) / 2 = max(x, 0) - |x| * erfc(|x| / sqrt(2)) / 2, with erfc by
// Abramowitz and Stegun, 7.1.26: within 1.5e-7.
PENSTOCK_DEVICE float GeluExact(float x) {
  const float size = fabsf(x);
  const float t = Divide(1.0f, Add(Multiply(size, 0.3275911f * 0.70710678f), 1.0f));
  float p = Add(Multiply(1.061405429f, t), -1.453152027f);
  p = Add(Multiply(p, t), 1.421413741f);
  p = Add(Multiply(p, t), -0.284496736f);
  p = Add(Multiply(p, t), 0.254829592f);
  const float decay = Exp2(Multiply(Multiply(x, x), -0.5f * 1.4426950408889634f));
  const float half_erfc = Multiply(Multiply(Multiply(p, t), decay), 0.5f);
  return Add(fmaxf(x, 0.0f), -Multiply(size, half_erfc));
}

// Grid: rows x pieces of 4 * kRowThreads outputs.
template <GeluKind kKind>
__global__ void __launch_bounds__(kRowThreads) GeluKernel(const __grid_constant__ GeluParams p) {
  constexpr bool kGate = kKind == GeluKind::kTanhGate;
  const int32_t width = kGate ? p.product.width / 2 : p.product.width;
  const int32_t i = 4 * (BlockY() * kRowThreads + ThreadX());
  if (i >= width) return;
  const int64_t row = BlockX();
  Floats<4> x = ProductAt<4>(p.product, row, i), up{};
  if constexpr (kGate) up = ProductAt<4>(p.product, row, width + i);
  PENSTOCK_UNROLL
  for (int j = 0; j < 4; ++j) {
    float& value = x.value[j];
    value = kKind == GeluKind::kExact ? GeluExact(value) : GeluTanh(value);
    if (kGate) value = Multiply(value, up.value[j]);
  }
  Store(p.output + row * width + i, PackBf16(x));
}

}  // namespace penstock::cuda
