#pragma once

// Norms and activations that Llama's layers do not have.

#include "kernels/cuda/device/row_ops.cuh"

namespace penstock::cuda {

// Adds up a float of each thread, in the same order as AddRmsNormKernel. `partial` has a float for
// each warp, and may be used again by the next call.
PENSTOCK_DEVICE float BlockSum(float x, float* partial) {
  x = WarpSum(x);
  SyncBlock();  // all threads have read the sums of the last call
  if (ThreadX() % 32 == 0) partial[ThreadX() / 32] = x;
  SyncBlock();
  float sum = 0;
  PENSTOCK_UNROLL
  for (int w = 0; w < kRowThreads / 32; ++w) sum = Add(sum, partial[w]);
  return sum;
}

PENSTOCK_DEVICE float InverseRoot(float sum, int32_t size, float epsilon) {
  const float mean = Divide(sum, static_cast<float>(size));
  return Divide(1.0f, SquareRoot(Add(mean, epsilon)));
}

// x = x * scale * weight for each element of a row.
template <int kPieces>
PENSTOCK_DEVICE void ScaleRow(float scale, const RowPieces<kPieces>& weight,
                              RowPieces<kPieces>& row) {
  PENSTOCK_UNROLL
  for (int k = 0; k < kPieces; ++k) {
    PENSTOCK_UNROLL
    for (int j = 0; j < 4; ++j) {
      float& x = row.pieces[k].value[j];
      x = Multiply(Multiply(x, scale), weight.pieces[k].value[j]);
    }
  }
}

// The product's row, with its norm and factor. All pieces of a slice are under way together.
template <int kPieces>
PENSTOCK_DEVICE void LoadProduct(const NormParams& p, int64_t first, float* partial,
                                 RowPieces<kPieces>& sum) {
  for (int s = 0; s < p.product.slices; ++s) {
    const float* slice = p.product.data + s * p.product.slice_stride + first;
    sum.ForEach(p.hidden,
                [&](Floats<4>& x, int32_t column) { x.Add(FloatsAt<4>(slice + column)); });
  }
  if (p.product.bias != nullptr) {
    sum.ForEach(p.hidden,
                [&](Floats<4>& x, int32_t column) { x.Add(FloatsAt<4>(p.product.bias + column)); });
  }
  if (p.product_norm != nullptr) {
    RowPieces<kPieces> weight;
    weight.Load(p.product_norm, p.hidden);
    const float squares = BlockSum(sum.SumOfSquares(), partial);
    ScaleRow(InverseRoot(squares, p.hidden, p.epsilon), weight, sum);
  }
  PENSTOCK_UNROLL
  for (int k = 0; k < kPieces; ++k) {
    PENSTOCK_UNROLL
    for (int j = 0; j < 4; ++j) {
      sum.pieces[k].value[j] = Multiply(sum.pieces[k].value[j], p.factor);
    }
  }
}

// The layer norm (Ba et al., arXiv 1607.06450) of a row: the mean first, then the squares of the
// differences from it.
template <int kPieces>
PENSTOCK_DEVICE void LayerNormRow(const NormParams& p, float* partial, RowPieces<kPieces>& row) {
  RowPieces<kPieces> weight, bias;
  weight.Load(p.weight, p.hidden);
  bias.Load(p.bias, p.hidden);
  float sum = 0;
  row.ForEach(p.hidden, [&](const Floats<4>& x, int32_t) {
    PENSTOCK_UNROLL
    for (int j = 0; j < 4; ++j) sum = Add(sum, x.value[j]);
  });
  const float mean = Divide(BlockSum(sum, partial), static_cast<float>(p.hidden));
  row.ForEach(p.hidden, [&](Floats<4>& x, int32_t) {
    PENSTOCK_UNROLL
    for (int j = 0; j < 4; ++j) x.value[j] = Add(x.value[j], -mean);
  });
  const float squares = BlockSum(row.SumOfSquares(), partial);
  ScaleRow(InverseRoot(squares, p.hidden, p.epsilon), weight, row);
  PENSTOCK_UNROLL
  for (int k = 0; k < kPieces; ++k) row.pieces[k].Add(bias.pieces[k]);
}

// The row's norm, as `p` has it.
template <int kPieces>
PENSTOCK_DEVICE void NormRow(const NormParams& p, float* partial, RowPieces<kPieces>& row) {
  if (p.weight == nullptr) return;
  if (p.bias != nullptr) return LayerNormRow(p, partial, row);
  RowPieces<kPieces> weight;
  weight.Load(p.weight, p.hidden);
  const float squares = BlockSum(row.SumOfSquares(), partial);
  ScaleRow(InverseRoot(squares, p.hidden, p.epsilon), weight, row);
}

// AddRmsNormKernel for NormParams that are not plain. Grid: rows. Shared memory: one float per
// warp.
template <int kPieces>
__global__ void __launch_bounds__(kRowThreads)
    AddOtherNormKernel(const __grid_constant__ NormParams p) {
  auto* partial = reinterpret_cast<float*>(SharedMemory());
  const int64_t first = static_cast<int64_t>(BlockX()) * p.hidden;
  RowPieces<kPieces> row;
  row.Load(p.residual + first, p.hidden);
  if (p.product.slices > 0) {
    RowPieces<kPieces> sum;
    LoadProduct(p, first, partial, sum);
    PENSTOCK_UNROLL
    for (int k = 0; k < kPieces; ++k) sum.pieces[k].Add(row.pieces[k]);
    sum.ForEach(p.hidden, [&](const Floats<4>& x, int32_t column) {
      *reinterpret_cast<Floats<4>*>(p.residual + first + column) = x;
    });
    if (!p.norms_first) row = sum;
  }
  NormRow(p, partial, row);
  row.ForEach(p.hidden, [&](const Floats<4>& x, int32_t column) {
    Store(p.output + first + column, PackBf16(x));
  });
}

// The part of a row of queries, keys and values that one block has.
struct HeadsPart {
  int32_t first, width;
  const float* weight;  // null: no norm

  static PENSTOCK_DEVICE HeadsPart Of(const WideHeadNormParams& p, int part) {
    if (part == 0) return {0, p.query_width, p.query_norm};
    return {p.query_width + (part - 1) * p.key_width, p.key_width,
            part == 1 ? p.key_norm : nullptr};
  }
};

// Each thread reads and writes the same elements, so that the output may be the first slice. Grid:
// rows x {queries, keys, values}. Shared memory: one float per warp.
__global__ void __launch_bounds__(kRowThreads)
    WideHeadNormKernel(const __grid_constant__ WideHeadNormParams p) {
  const HeadsPart part = HeadsPart::Of(p, BlockY());
  const int64_t row = BlockX();
  float* to = p.output + row * p.product.width + part.first;
  float sum = 0;
  for (int i = 4 * ThreadX(); i < part.width; i += 4 * kRowThreads) {
    const Floats<4> x = ProductAt<4>(p.product, row, part.first + i);
    PENSTOCK_UNROLL
    for (int j = 0; j < 4; ++j) sum = Add(sum, Multiply(x.value[j], x.value[j]));
    *reinterpret_cast<Floats<4>*>(to + i) = x;
  }
  if (part.weight == nullptr) return;
  sum = BlockSum(sum, reinterpret_cast<float*>(SharedMemory()));
  const float scale = InverseRoot(sum, part.width, p.epsilon);
  for (int i = 4 * ThreadX(); i < part.width; i += 4 * kRowThreads) {
    Floats<4> x = FloatsAt<4>(to + i);
    const Floats<4> weight = FloatsAt<4>(part.weight + i);
    PENSTOCK_UNROLL
    for (int j = 0; j < 4; ++j) x.value[j] = Multiply(Multiply(x.value[j], scale), weight.value[j]);
    *reinterpret_cast<Floats<4>*>(to + i) = x;
  }
}

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
