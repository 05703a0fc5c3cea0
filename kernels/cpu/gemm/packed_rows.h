#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>

#include "kernels/cpu/gemm/gemm_blocks.h"

// The parts that products of bf16 numbers share, whether a weight is stored as bf16 or expanded to
// it: packed rows of the input, and the number of panels that are read side by side.

namespace penstock::gemm {

// The input of a product in blocks of at most kTileRows rows, as SimdOps::multiply_tile reads them.
struct PackedRows {
  PackedRows(const GemmArgs& product, const SimdOps& ops)
      : args(product), simd(ops), blocks(product.input.dim(0)), inputs(product.input.dim(1)) {}

  // A single row that needs no rounding is used unpacked.
  bool InPlace() const { return blocks.rows == 1 && simd.activation_bytes == sizeof(float); }
  std::byte* Packed(int64_t block, int64_t first_input) const {
    const int64_t element = blocks.First(block) * inputs + first_input * blocks.Rows(block);
    return reinterpret_cast<std::byte*>(args.scratch->packed()) + element * simd.activation_bytes;
  }
  const void* Slice(int64_t block, int64_t first_input) const {
    if (InPlace()) return args.input.data + first_input;
    return Packed(block, first_input);
  }

  const GemmArgs& args;
  const SimdOps& simd;
  Blocks blocks;
  int64_t inputs;
};

// Packs the rows into args.scratch.
void PackRows(const Exec& exec, const PackedRows& rows);

// The panels that a product of one block of `rows` rows reads at once.
inline int PanelsAtOnce(int64_t rows) {
  return rows <= kRowsByFour ? 4 : rows <= kRowsByTwo ? 2 : 1;
}

// The minimum panels per task. The last tasks are shorter than the widest pass, so that no thread
// waits long for another.
inline int64_t LeastPanels(int64_t rows) { return std::min(PanelsAtOnce(rows), 2); }

// Calls use(from, step, count) for all panels of [first, last): panels from, from + step, ... are
// `count` panels side by side, as many as possible.
void SideBySide(int64_t first, int64_t last, int most, const auto& use) {
  for (int count = most; count > 0; count /= 2) {
    const int64_t step = (last - first) / count;
    for (int64_t i = 0; i < step; ++i) use(first + i, step, count);
    first += step * count;
  }
}

}  // namespace penstock::gemm
