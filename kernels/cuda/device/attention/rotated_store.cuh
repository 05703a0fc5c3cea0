#pragma once

// Outputs of attention over rotated values, which are rotated back before they are stored.

#include "kernels/cuda/attention_params.h"
#include "kernels/cuda/device/hadamard.cuh"

namespace penstock::cuda {

// attention.cuh has both.
template <class Shape>
struct AttentionBlock;
template <bool kPlain>
PENSTOCK_DEVICE float OutputFactor(const AttentionParams& p, int head, float max, float sum);

// Rotates a row back that lies in a warp as Hadamard specifies, and stores it.
template <int kElements>
PENSTOCK_DEVICE void StoreRotatedBack(float (&x)[kElements], int lane, Bf16* row) {
  Hadamard(x, lane);
  auto* words = reinterpret_cast<uint32_t*>(row) + lane * (kElements / 2);
  PENSTOCK_UNROLL
  for (int i = 0; i < kElements; i += 2) words[i / 2] = PackBf16(x[i], x[i + 1]);
}

// The memory of a block in which rows lie whole. A warp of a wide block has eight rows of its own
// there; in a narrow one all warps have parts of the same eight, of which each rotates two.
template <class Shape>
struct RotatedRows {
  static constexpr int kDim = Shape::kDim, kElements = kDim / 32;
  static constexpr int kStride = kDim + 8;  // puts the rows that a warp writes into other banks
  static constexpr int kRowsOfWarp = Shape::kWide ? 8 : 8 / Shape::kWarps;
  static_assert(kRowsOfWarp * Shape::kWarps * kStride * sizeof(float) <= Shape::kSharedBytes);

  static PENSTOCK_DEVICE float* Row(int row) {
    return reinterpret_cast<float*>(SharedMemory()) + row * kStride;
  }
};

// Stores the rows of a block, as AttentionBlock::Store does. All threads call it, behind the last
// tile.
template <class Shape>
PENSTOCK_DEVICE void StoreRotated(const AttentionBlock<Shape>& b) {
  using Block = AttentionBlock<Shape>;
  using Rows = RotatedRows<Shape>;
  PENSTOCK_UNROLL
  for (int m = 0; m < Block::kRowTiles; ++m) {
    PENSTOCK_UNROLL
    for (int r = 0; r < 2; ++r) {
      const int head = b.kv_head * b.p.group + b.RowOf(m, r) % b.p.group;
      const float factor = OutputFactor<Shape::kPlain>(b.p, head, b.max[m][r], b.sum[m][r]);
      float* part = Rows::Row((Shape::kWide ? b.warp * 8 : 0) + b.group) + b.member * 2;
      SyncBlock();  // all threads are done with what the memory held
      PENSTOCK_UNROLL
      for (int i = 0; i < Block::kOutputTiles; ++i) {
        part[(b.first_output + i) * 8] = Multiply(b.output[m][i][2 * r], factor);
        part[(b.first_output + i) * 8 + 1] = Multiply(b.output[m][i][2 * r + 1], factor);
      }
      SyncBlock();
      PENSTOCK_NO_UNROLL
      for (int i = 0; i < Rows::kRowsOfWarp; ++i) {
        const int whole = b.warp * Rows::kRowsOfWarp + i;
        const int row = b.RowOf(m, r) - b.group + (Shape::kWide ? i : whole);
        if (row >= b.rows) break;
        float x[Rows::kElements];
        PENSTOCK_UNROLL
        for (int e = 0; e < Rows::kElements; ++e) {
          x[e] = Rows::Row(whole)[b.lane * Rows::kElements + e];
        }
        const int to = b.kv_head * b.p.group + row % b.p.group;
        StoreRotatedBack(x, b.lane,
                         b.p.output + (b.sequence.first_row + row / b.p.group) * b.p.output_stride +
                             to * Rows::kDim);
      }
    }
  }
}

}  // namespace penstock::cuda
