#pragma once

#include "kernels/cuda/device/device.cuh"
#include "kernels/cuda/row_params.h"

namespace penstock::cuda {

// Threads per block: the same for every batch, so that every sum has the same tree.
constexpr int kRowThreads = 256;

PENSTOCK_DEVICE float ProductAt(const Product& product, int64_t row, int32_t column) {
  const float* from = product.data + row * product.width + column;
  float x = 0;
  for (int s = 0; s < product.slices; ++s) x = Add(x, from[s * product.slice_stride]);
  if (product.bias != nullptr) x = Add(x, product.bias[column]);
  return x;
}

PENSTOCK_DEVICE float WarpSum(float x) {
  PENSTOCK_UNROLL
  for (int mask = 16; mask > 0; mask /= 2) x = Add(x, ShuffleXor(x, mask));
  return x;
}

// Embedding lookup: one f32 row from a bf16 table. Grid: rows.
__global__ void __launch_bounds__(kRowThreads)
    EmbeddingKernel(const __grid_constant__ EmbeddingParams p) {
  const Bf16* from = p.table + static_cast<int64_t>(p.tokens[BlockX()]) * p.hidden;
  float* to = p.output + static_cast<int64_t>(BlockX()) * p.hidden;
  for (int i = ThreadX(); i < p.hidden / 8; i += kRowThreads) {
    const Words4 words = reinterpret_cast<const Words4*>(from)[i];
    PENSTOCK_UNROLL
    for (int j = 0; j < 4; ++j) {
      to[i * 8 + 2 * j] = LowBf16(words.word[j]);
      to[i * 8 + 2 * j + 1] = HighBf16(words.word[j]);
    }
  }
}

// Residual addition and RMS norm (Zhang and Sennrich, arXiv 1910.07467). Grid: rows. Shared memory:
// one float per warp.
__global__ void __launch_bounds__(kRowThreads)
    AddRmsNormKernel(const __grid_constant__ NormParams p) {
  auto* partial = reinterpret_cast<float*>(SharedMemory());
  const int64_t row = BlockX();
  float* residual = p.residual + row * p.hidden;
  float sum = 0;
  for (int i = ThreadX(); i < p.hidden; i += kRowThreads) {
    float x = residual[i];
    if (p.product.slices > 0) {
      x = Add(x, ProductAt(p.product, row, i));
      residual[i] = x;
    }
    sum = Add(sum, Multiply(x, x));
  }
  if (p.weight == nullptr) return;
  sum = WarpSum(sum);
  if (ThreadX() % 32 == 0) partial[ThreadX() / 32] = sum;
  SyncBlock();
  sum = 0;
  PENSTOCK_UNROLL
  for (int w = 0; w < kRowThreads / 32; ++w) sum = Add(sum, partial[w]);
  const float mean = Divide(sum, static_cast<float>(p.hidden));
  const float scale = Divide(1.0f, SquareRoot(Add(mean, p.epsilon)));
  Bf16* output = p.output + row * p.hidden;
  for (int i = ThreadX(); i < p.hidden; i += kRowThreads) {
    output[i].bits = RoundBf16(Multiply(Multiply(residual[i], scale), p.weight[i]));
  }
}

// SwiGLU (Shazeer, arXiv 2002.05202). Grid: rows x pieces of kRowThreads outputs.
__global__ void __launch_bounds__(kRowThreads)
    SiluGateKernel(const __grid_constant__ SiluGateParams p) {
  const int32_t half = p.product.width / 2, i = BlockY() * kRowThreads + ThreadX();
  if (i >= half) return;
  const int64_t row = BlockX();
  const float gate = ProductAt(p.product, row, i), up = ProductAt(p.product, row, half + i);
  // If 2^x overflows to infinity, the quotient is 0, which is the right limit.
  const float decay = Exp2(Multiply(-1.4426950408889634f, gate));
  p.output[row * half + i].bits = RoundBf16(Multiply(Divide(gate, Add(1.0f, decay)), up));
}

// Adds up the slices of a product. Grid: rows x pieces of kRowThreads columns.
__global__ void __launch_bounds__(kRowThreads)
    SumSlicesKernel(const __grid_constant__ SumSlicesParams p) {
  const int32_t i = BlockY() * kRowThreads + ThreadX();
  if (i >= p.product.width) return;
  const int64_t row = BlockX();
  p.output[row * p.product.width + i] = ProductAt(p.product, row, i);
}

// Gathers rows. Grid: rows.
__global__ void __launch_bounds__(kRowThreads)
    GatherRowsKernel(const __grid_constant__ GatherRowsParams p) {
  const uint32_t* from = p.input + static_cast<int64_t>(p.from[BlockX()]) * p.width;
  uint32_t* to = p.output + static_cast<int64_t>(BlockX()) * p.width;
  for (int i = ThreadX(); i < p.width; i += kRowThreads) to[i] = from[i];
}

}  // namespace penstock::cuda
