#pragma once

#include <cstdint>

#include "kernels/bf16.h"
#include "kernels/cuda/row_params.h"
#include "kernels/cuda/weight_codes.h"

namespace penstock::cuda {

constexpr int kSkinnyRowsMax = 64;  // rows that one pass over the weight handles

// A weight in device memory: in bf16 in the layout of checkpoints, [outputs][inputs], or as codes,
// in sections of outputs that each have one form. inputs is a multiple of 8.
struct Weight {
  const Bf16* data = nullptr;  // null: the weight is quantised
  int32_t outputs = 0;
  int32_t inputs = 0;
  const WeightCodes* sections = nullptr;  // in host memory, in order of outputs
  int32_t section_count = 0;

  bool quantised() const { return section_count > 0; }
};

// The number of slices that the inputs are divided into (split-K), so that enough blocks stream the
// weight. It depends on the weight only, so that every element is the same sum for any number of
// rows.
int32_t SkinnySlices(const Weight& weight);
// The inputs of a slice, a multiple of 128; the last slice may have fewer.
int32_t SliceInputs(const Weight& weight);

// Arguments of the skinny kernel. All pointers are to device memory.
struct SkinnyParams {
  Weight weight;
  const Bf16* input = nullptr;  // [rows][inputs]
  int64_t input_stride = 0;     // elements from row to row of the input
  int32_t rows = 0;
  float* output = nullptr;   // [slices][output_rows][outputs]
  int64_t slice_stride = 0;  // elements from slice to slice of the output
  int32_t slice_inputs = 0;
};

// Arguments of the wide kernel. All pointers are to device memory.
struct WideParams {
  Weight weight;
  const Bf16* input = nullptr;  // [rows][inputs]
  int64_t input_stride = 0;     // elements from row to row of the input
  int32_t rows = 0;
  float* output = nullptr;   // [slices, or 1 if added up][rows][outputs]
  int64_t slice_stride = 0;  // elements from slice to slice of the output
  int32_t slice_inputs = 0;
  int32_t block_inputs = 0;  // inputs per block: slice_inputs, or all
};

// Computes input [rows][inputs] * weight^T. The product consists of SkinnySlices(weight) slices,
// which its reader adds up, or of fewer slices with the same sum. Gemm uses the skinny kernel if
// one pass handles all rows, else the wide kernel. A row's sum has the same bits from either
// kernel, for any other rows. `output` has room for SkinnySlices(weight) * rows * outputs floats.
Product Gemm(const Weight& weight, const Bf16* input, int rows, float* output, void* stream);

// The two kernels. SkinnyGemm reads the weight once per kSkinnyRowsMax rows. WideGemm is for
// hundreds of rows; it stores the slices apart or adds them up.
Product SkinnyGemm(const Weight& weight, const Bf16* input, int rows, float* output, void* stream);
enum class Slices { kApart, kAddedUp };
Product WideGemm(const Weight& weight, const Bf16* input, int rows, float* output, Slices slices,
                 void* stream);

}  // namespace penstock::cuda
