#pragma once

#include <cstdint>

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

// output = input * weight^T in SkinnySlices(weight) parts, which whoever reads the product adds up;
// more than kSkinnyRowsMax rows read the weight again for each such group. `output` has room for
// SkinnySlices(weight) * rows * outputs floats.
Product SkinnyGemm(const Weight& weight, const Bf16* input, int rows, float* output, void* stream);

}  // namespace penstock::cuda
