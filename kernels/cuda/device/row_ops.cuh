#pragma once

#include "kernels/cuda/device/row_values.cuh"

namespace penstock::cuda {

// Embedding lookup: one f32 row from a bf16 table. Grid: rows.
__global__ void __launch_bounds__(kRowThreads)
    EmbeddingKernel(const __grid_constant__ EmbeddingParams p) {
  const Bf16* from = p.table + static_cast<int64_t>(p.tokens[BlockX()]) * p.hidden;
  float* to = p.output + static_cast<int64_t>(BlockX()) * p.hidden;
  for (int i = ThreadX(); i < p.hidden / 8; i += kRowThreads) {
    const Words4 pairs = reinterpret_cast<const Words4*>(from)[i];
    PENSTOCK_UNROLL
    for (int j = 0; j < 2; ++j) {
      const uint32_t first = pairs.word[2 * j], second = pairs.word[2 * j + 1];
      Store(to + i * 8 + j * 4,
            Words4{first << 16, first & 0xffff0000u, second << 16, second & 0xffff0000u});
    }
  }
}

// The same with learned positions and a multiplier.
__global__ void __launch_bounds__(kRowThreads)
    PlacedEmbeddingKernel(const __grid_constant__ EmbeddingParams p) {
  const Bf16* from = p.table + static_cast<int64_t>(p.tokens[BlockX()]) * p.hidden;
  const bool placed = p.position_table != nullptr;
  const Bf16* position =
      placed ? p.position_table + static_cast<int64_t>(p.positions[BlockX()]) * p.hidden : nullptr;
  float* to = p.output + static_cast<int64_t>(BlockX()) * p.hidden;
  for (int i = 4 * ThreadX(); i < p.hidden; i += 4 * kRowThreads) {
    Floats<4> x = WidenedAt(from + i);
    if (placed) x.Add(WidenedAt(position + i));
    PENSTOCK_UNROLL
    for (int j = 0; j < 4; ++j) x.value[j] = Multiply(x.value[j], p.multiplier);
    *reinterpret_cast<Floats<4>*>(to + i) = x;
  }
}

// A row in a block: thread t has the elements from 4 * (t + kRowThreads * k) on as piece k. They
// stay in registers, so that all loads are under way at the same time.
template <int kPieces>
struct RowPieces {
  Floats<4> pieces[kPieces] = {};

  // visit(piece, column) for this thread's pieces of a row of `width` elements.
  template <class Visit>
  PENSTOCK_DEVICE void ForEach(int32_t width, const Visit& visit) {
    PENSTOCK_UNROLL
    for (int k = 0; k < kPieces; ++k) {
      const int32_t column = 4 * (ThreadX() + kRowThreads * k);
      if (column < width) visit(pieces[k], column);
    }
  }
  PENSTOCK_DEVICE void Load(const float* row, int32_t width) {
    ForEach(width, [&](Floats<4>& x, int32_t column) { x = FloatsAt<4>(row + column); });
  }
  PENSTOCK_DEVICE float SumOfSquares() const {
    float sum = 0;
    PENSTOCK_UNROLL
    for (int k = 0; k < kPieces; ++k) {
      PENSTOCK_UNROLL
      for (int j = 0; j < 4; ++j) sum = Add(sum, Multiply(pieces[k].value[j], pieces[k].value[j]));
    }
    return sum;
  }
};

// residual += product, also in `row`. Unlike ProductAt it takes one slice of all pieces at a time,
// so that their loads are under way together.
template <int kPieces>
PENSTOCK_DEVICE void AddProduct(const NormParams& p, RowPieces<kPieces>& row) {
  RowPieces<kPieces> sum;
  const int64_t first = static_cast<int64_t>(BlockX()) * p.hidden;
  for (int s = 0; s < p.product.slices; ++s) {
    const float* slice = p.product.data + s * p.product.slice_stride + first;
    sum.ForEach(p.hidden,
                [&](Floats<4>& x, int32_t column) { x.Add(FloatsAt<4>(slice + column)); });
  }
  if (p.product.bias != nullptr) {
    sum.ForEach(p.hidden,
                [&](Floats<4>& x, int32_t column) { x.Add(FloatsAt<4>(p.product.bias + column)); });
  }
  PENSTOCK_UNROLL
  for (int k = 0; k < kPieces; ++k) row.pieces[k].Add(sum.pieces[k]);
  row.ForEach(p.hidden, [&](const Floats<4>& x, int32_t column) {
    *reinterpret_cast<Floats<4>*>(p.residual + first + column) = x;
  });
}

// Residual addition and RMS norm (Zhang and Sennrich, arXiv 1910.07467) of rows of up to 1,024 *
// kPieces elements. Grid: rows. Shared memory: one float per warp.
template <int kPieces>
__global__ void __launch_bounds__(kRowThreads)
    AddRmsNormKernel(const __grid_constant__ NormParams p) {
  auto* partial = reinterpret_cast<float*>(SharedMemory());
  const int64_t first = static_cast<int64_t>(BlockX()) * p.hidden;
  RowPieces<kPieces> row, weight;
  row.Load(p.residual + first, p.hidden);
  if (p.product.slices > 0) AddProduct(p, row);
  weight.Load(p.weight, p.hidden);
  float sum = WarpSum(row.SumOfSquares());
  if (ThreadX() % 32 == 0) partial[ThreadX() / 32] = sum;
  SyncBlock();
  sum = 0;
  PENSTOCK_UNROLL
  for (int w = 0; w < kRowThreads / 32; ++w) sum = Add(sum, partial[w]);
  const float mean = Divide(sum, static_cast<float>(p.hidden));
  const float scale = Divide(1.0f, SquareRoot(Add(mean, p.epsilon)));
  PENSTOCK_UNROLL
  for (int k = 0; k < kPieces; ++k) {
    PENSTOCK_UNROLL
    for (int j = 0; j < 4; ++j) {
      float& x = row.pieces[k].value[j];
      x = Multiply(Multiply(x, scale), weight.pieces[k].value[j]);
    }
  }
  row.ForEach(p.hidden, [&](const Floats<4>& x, int32_t column) {
    Store(p.output + first + column, PackBf16(x));
  });
}

PENSTOCK_DEVICE float SiluGated(float gate, float up) {
  // If 2^x overflows to infinity, the quotient is 0, which is the right limit.
  const float decay = Exp2(Multiply(-1.4426950408889634f, gate));
  return Multiply(Divide(gate, Add(1.0f, decay)), up);
}

// SwiGLU (Shazeer, arXiv 2002.05202). Grid: rows x pieces of 4 * kRowThreads outputs.
__global__ void __launch_bounds__(kRowThreads)
    SiluGateKernel(const __grid_constant__ SiluGateParams p) {
  const int32_t half = p.product.width / 2, i = 4 * (BlockY() * kRowThreads + ThreadX());
  if (i >= half) return;
  const int64_t row = BlockX();
  Floats<4> x = ProductAt<4>(p.product, row, i);
  const Floats<4> up = ProductAt<4>(p.product, row, half + i);
  PENSTOCK_UNROLL
  for (int j = 0; j < 4; ++j) x.value[j] = SiluGated(x.value[j], up.value[j]);
  Store(p.output + row * half + i, PackBf16(x));
}

// Adds up the slices of a product. Grid: rows x pieces of kRowThreads columns.
__global__ void __launch_bounds__(kRowThreads)
    SumSlicesKernel(const __grid_constant__ SumSlicesParams p) {
  const int32_t i = BlockY() * kRowThreads + ThreadX();
  if (i >= p.product.width) return;
  const int64_t row = BlockX();
  p.output[row * p.product.width + i] = ProductAt<1>(p.product, row, i).value[0];
}

// tanh(x) = 1 - 2 / (1 + e^2x), where log2_e2x = 2 * log2(e) * x.
PENSTOCK_DEVICE float TanhOf(float log2_e2x) {
  return Add(1.0f, -Multiply(2.0f, Reciprocal(Add(1.0f, Exp2(log2_e2x)))));
}

// The same, times a factor and capped (Gemma 2: arXiv 2408.00118).
__global__ void __launch_bounds__(kRowThreads)
    CapSlicesKernel(const __grid_constant__ SumSlicesParams p) {
  const int32_t i = BlockY() * kRowThreads + ThreadX();
  if (i >= p.product.width) return;
  const int64_t row = BlockX();
  float x = Multiply(ProductAt<1>(p.product, row, i).value[0], p.factor);
  if (p.cap != 0) x = Multiply(p.cap, TanhOf(Multiply(Divide(x, p.cap), 2 * 1.4426950408889634f)));
  p.output[row * p.product.width + i] = x;
}

// Gathers rows. Grid: rows.
__global__ void __launch_bounds__(kRowThreads)
    GatherRowsKernel(const __grid_constant__ GatherRowsParams p) {
  const uint32_t* from = p.input + static_cast<int64_t>(p.from[BlockX()]) * p.width;
  uint32_t* to = p.output + static_cast<int64_t>(BlockX()) * p.width;
  for (int i = ThreadX(); i < p.width; i += kRowThreads) to[i] = from[i];
}

}  // namespace penstock::cuda
