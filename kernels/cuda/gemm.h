#pragma once

#include <cstdint>

#include "kernels/bf16.h"
#include "kernels/cuda/row_params.h"

namespace penstock::cuda {

constexpr int kSkinnyRowsMax = 64;  // rows that one pass over the weights takes

// A weight in device memory, as checkpoints have it: [outputs][inputs], inputs a multiple of 8.
struct Weight {
  const Bf16* data = nullptr;
  int32_t outputs = 0;
  int32_t inputs = 0;
};

// Inputs are cut into slices of a fixed size, a function of the weight alone, so that there are
// blocks enough to stream it: every element is then the same sum whatever the number of rows.
int32_t SkinnySlices(const Weight& weight);

struct SkinnyParams {
  Weight weight;
  const Bf16* input = nullptr;  // [rows][inputs]
  int32_t rows = 0;
  float* output = nullptr;  // [slices][output_rows][outputs]
  int64_t slice_stride = 0;
  int32_t slice_inputs = 0;
};

struct WideParams {
  Weight weight;
  const Bf16* input = nullptr;  // [rows][inputs]
  int32_t rows = 0;
  float* output = nullptr;  // [slices, or 1][rows][outputs]
  int64_t slice_stride = 0;
  int32_t slice_inputs = 0;
  int32_t block_inputs = 0;  // slice_inputs, or all
};

// input * weight^T, as SkinnySlices(weight) parts that whoever reads the product adds up, or as
// fewer with that sum: by the skinny kernel where it takes the rows at once, by the wide one else.
// A row's sum has the same bits from either, whatever the other rows. `output` has room for
// SkinnySlices(weight) * rows * outputs floats.
Product Gemm(const Weight& weight, const Bf16* input, int rows, float* output, void* stream);

// The kernels themselves. The skinny one reads the weight again for every kSkinnyRowsMax rows; the
// wide one, made for hundreds of rows, leaves slices apart or adds them up.
Product SkinnyGemm(const Weight& weight, const Bf16* input, int rows, float* output, void* stream);
enum class Slices { kApart, kAddedUp };
Product WideGemm(const Weight& weight, const Bf16* input, int rows, float* output, Slices slices,
                 void* stream);

}  // namespace penstock::cuda
