#pragma once

#include <cstdint>

#include "kernels/bf16.h"
#include "kernels/cuda/kv_planes.h"

// Arguments of the operations on rows. All pointers are to device memory. The bits of a row depend
// on that row only.

namespace penstock::cuda {

// An unfinished matrix product: the sum over `slices`, in ascending order, of [rows][width], plus
// the bias.
struct Product {
  const float* data = nullptr;
  int64_t slice_stride = 0;  // elements from slice to slice
  int32_t slices = 0;
  int32_t width = 0;
  const float* bias = nullptr;  // [width], or null
};

struct EmbeddingParams {
  const uint32_t* tokens = nullptr;  // [rows]; each is below the vocabulary size
  const Bf16* table = nullptr;       // [vocabulary][hidden]
  float* output = nullptr;           // [rows][hidden]
  int32_t hidden = 0;                // a multiple of 8
};

// The longest row that AddRmsNorm keeps in registers.
constexpr int32_t kHiddenMax = 16384;

// residual += product (if it has slices); output = residual / rms(residual) * weight.
struct NormParams {
  float* residual = nullptr;      // [rows][hidden]
  Product product;                // width == hidden
  const float* weight = nullptr;  // [hidden]
  Bf16* output = nullptr;         // [rows][hidden]
  int32_t hidden = 0;             // a multiple of 4, at most kHiddenMax
  float epsilon = 1e-5f;
};

// output = silu(gate) * up for a product with rows [gate: width / 2][up: width / 2]; width is a
// multiple of 8.
struct SiluGateParams {
  Product product;
  Bf16* output = nullptr;  // [rows][width / 2]
};

// Input: a product with rows [heads | kv_heads | kv_heads] of head_dim elements. Normalises the
// heads whose weight is given, rotates queries and keys by their position (RoPE, dimension i
// against i + head_dim / 2), stores keys and values in their pages in the pages' code, and writes
// the queries to `queries`. The stored bytes equal those of kv_quant.h for rows rounded to bf16.
struct RopeAppendParams {
  Product product;
  const float* cosines = nullptr;  // [rows][head_dim / 2]
  const float* sines = nullptr;
  const float* query_norm = nullptr;  // [head_dim], or null
  const float* key_norm = nullptr;
  float epsilon = 1e-5f;
  Bf16* queries = nullptr;  // [rows][heads][head_dim]
  int32_t heads = 0;
  int32_t rows = 0;
  KvPlanes kv;
  const int64_t* slots = nullptr;  // [rows]: block << page_log2 | slot; negative: not stored
};

// output = the sum of the product's slices. `output` may be the address of the first slice.
struct SumSlicesParams {
  Product product;
  float* output = nullptr;  // [rows][width]
};

// output[i] = input[from[i]] for rows of `width` 4-byte words.
struct GatherRowsParams {
  const uint32_t* input = nullptr;
  uint32_t* output = nullptr;
  const int32_t* from = nullptr;
  int32_t width = 0;
};

}  // namespace penstock::cuda
