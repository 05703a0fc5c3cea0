#pragma once

// The operations on rows of latent attention: norms, rotations and the store into the pages.

#include "kernels/cuda/device/rope_append.cuh"
#include "kernels/cuda/latents/latents.h"

namespace penstock::cuda {

// Grid: rows. Shared memory: one float per warp.
__global__ void __launch_bounds__(kRowThreads)
    LatentNormKernel(const __grid_constant__ LatentNormParams p) {
  auto* partial = reinterpret_cast<float*>(SharedMemory());
  const int64_t row = BlockX();
  const int32_t width = p.product.width;
  float sum = 0;
  for (int32_t i = 4 * ThreadX(); i < width; i += 4 * kRowThreads) {
    const Floats<4> x = ProductAt<4>(p.product, row, i);
    PENSTOCK_UNROLL
    for (int j = 0; j < 4; ++j) sum = Add(sum, Multiply(x.value[j], x.value[j]));
  }
  sum = WarpSum(sum);
  if (ThreadX() % 32 == 0) partial[ThreadX() / 32] = sum;
  SyncBlock();
  sum = 0;
  PENSTOCK_UNROLL
  for (int w = 0; w < kRowThreads / 32; ++w) sum = Add(sum, partial[w]);
  const float mean = Divide(sum, static_cast<float>(width));
  const float scale = Divide(1.0f, SquareRoot(Add(mean, p.epsilon)));
  for (int32_t i = 4 * ThreadX(); i < width; i += 4 * kRowThreads) {
    Floats<4> x = ProductAt<4>(p.product, row, i);
    const Floats<4> weight = FloatsAt<4>(p.weight + i);
    PENSTOCK_UNROLL
    for (int j = 0; j < 4; ++j) x.value[j] = Multiply(Multiply(x.value[j], scale), weight.value[j]);
    Store(p.output + row * width + i, PackBf16(x));
  }
}

// Loads `kDim` elements from `column` on of a product's row.
template <int kDim>
PENSTOCK_DEVICE HeadRow<kDim> HeadRowAt(const Product& product, int64_t row, int32_t column) {
  constexpr int kElements = HeadRow<kDim>::kElements, kAtOnce = kElements < 4 ? kElements : 4;
  HeadRow<kDim> x;
  x.lane = ThreadX() % 32;
  PENSTOCK_UNROLL
  for (int i = 0; i < kElements; i += kAtOnce) {
    const auto part = ProductAt<kAtOnce>(product, row, column + x.lane * kElements + i);
    PENSTOCK_UNROLL
    for (int j = 0; j < kAtOnce; ++j) x.x[i + j] = part.value[j];
  }
  return x;
}

// Grid: rows / kRopeWarps, a warp for each.
__global__ void __launch_bounds__(kRopeWarps * 32)
    LatentAppendKernel(const __grid_constant__ LatentAppendParams p) {
  const int64_t row = static_cast<int64_t>(BlockX()) * kRopeWarps + ThreadX() / 32;
  if (row >= p.rows) return;
  const int64_t where = p.slots[row];
  if (where < 0) return;
  auto latent = HeadRowAt<kLatentRank>(p.product, row, 0);
  auto key = HeadRowAt<kLatentRopeDims>(p.product, row, kLatentRank);
  latent.Normalise(p.norm, p.epsilon);
  const int64_t angles = row * (kLatentRopeDims / 2);
  key.Rotate(p.cosines + angles, p.sines + angles);
  const int64_t slot = where & ((int64_t{1} << p.kv.page_log2) - 1);
  std::byte* page = p.kv.layer + (where >> p.kv.page_log2) * p.kv.block_stride;
  auto* to = reinterpret_cast<Bf16*>(page + p.kv.keys.offset + slot * p.kv.keys.row_bytes);
  latent.StoreBf16(to);
  key.StoreBf16(to + kLatentRank);
}

// Grid: rows * heads / kRopeWarps, a warp for each.
__global__ void __launch_bounds__(kRopeWarps * 32)
    LatentQueriesKernel(const __grid_constant__ LatentQueryParams p) {
  const int64_t index = static_cast<int64_t>(BlockX()) * kRopeWarps + ThreadX() / 32;
  if (index >= static_cast<int64_t>(p.rows) * p.heads) return;
  const int64_t row = index / p.heads;
  const int32_t dims = p.plain_dims + kLatentRopeDims;
  const auto first = static_cast<int32_t>(index % p.heads) * dims;
  Bf16* to = p.queries + row * p.product.width + first;
  for (int32_t i = 4 * (ThreadX() % 32); i < p.plain_dims; i += 128) {
    Store(to + i, PackBf16(ProductAt<4>(p.product, row, first + i)));
  }
  auto rotated = HeadRowAt<kLatentRopeDims>(p.product, row, first + p.plain_dims);
  const int64_t angles = row * (kLatentRopeDims / 2);
  rotated.Rotate(p.cosines + angles, p.sines + angles);
  rotated.StoreBf16(to + p.plain_dims);
}

}  // namespace penstock::cuda
