#pragma once

#include "kernels/cuda/gemm.h"

namespace penstock::cuda {

// Where things are in a chunk, in bytes, and what CodeForm says of groups.
struct ChunkLayout {
  int32_t zeros_at = 0, offsets_at = 0, codes_at = 0, bytes = 0;
  int32_t group_halves_log2 = 0;  // a group has 1, 2, 4 or 8 times 16 inputs, half of a block
  int32_t zero = 0;
  bool zeros = false, offsets = false;
};
ChunkLayout LayoutOf(const CodeForm& form);

// Arguments of the product with the codes of a weight. All pointers are to device memory.
struct QuantisedParams {
  const uint8_t* panels = nullptr;
  ChunkLayout chunk;
  int32_t outputs = 0;  // of the panels
  int32_t inputs = 0;
  const Bf16* input = nullptr;  // [rows][inputs]
  int32_t rows = 0;             // at most kSkinnyRowsMax
  float* output = nullptr;      // [slices][rows][output_stride]
  int64_t output_stride = 0;
  int64_t slice_stride = 0;
  int32_t slice_inputs = 0;  // a multiple of kCodeInputs
};

// Arguments of the expansion of codes, of one matrix or of several that are alike.
struct ExpandParams {
  const uint8_t* panels = nullptr;
  ChunkLayout chunk;
  int32_t outputs = 0;
  int32_t inputs = 0;         // a multiple of 8
  Bf16* target = nullptr;     // [outputs][inputs]
  int64_t panels_stride = 0;  // bytes from matrix to matrix
  int64_t target_stride = 0;  // and elements
};

// As Gemm, for a weight that has codes. It reads them once per kSkinnyRowsMax rows. With
// InputOrder::kOwn a row's sum has the bits that Gemm gives for the expanded weight; with kNatural
// it is one slice, with the bits of the library's products (kernels/library) for it.
Product QuantisedGemm(const Weight& weight, const Bf16* input, int rows, float* output,
                      void* stream);

inline size_t ExpandedBytes(const Weight& weight) {
  return sizeof(Bf16) * static_cast<size_t>(weight.outputs) * static_cast<size_t>(weight.inputs);
}
// Writes the bf16 weights of a weight that has codes, [outputs][inputs].
void ExpandWeight(const Weight& weight, Bf16* target, void* stream);

}  // namespace penstock::cuda
