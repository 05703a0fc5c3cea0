#pragma once

#include <cstdint>

#include "kernels/bf16.h"
#include "kernels/cuda/kv_planes.h"

// Ops on rows. All pointers are to device memory; a row's bits depend on that row alone.

namespace penstock::cuda {

// A matrix product as it comes: the sum over `slices`, in ascending order, of [rows][width].
struct Product {
  const float* data = nullptr;
  int64_t slice_stride = 0;  // elements
  int32_t slices = 0;
  int32_t width = 0;
  const float* bias = nullptr;  // [width], or null
};

struct EmbeddingParams {
  const uint32_t* tokens = nullptr;  // [rows], each below the vocabulary
  const Bf16* table = nullptr;       // [vocabulary][hidden]
  float* output = nullptr;           // [rows][hidden]
  int32_t hidden = 0;                // a multiple of 8
};

// residual += product (where it has slices); output = residual / rms(residual) * weight.
struct NormParams {
  float* residual = nullptr;      // [rows][hidden]
  Product product;                // width == hidden
  const float* weight = nullptr;  // [hidden], or null: no output
  Bf16* output = nullptr;         // [rows][hidden]
  int32_t hidden = 0;
  float epsilon = 1e-5f;
};

// output = silu(gate) * up, of a product of rows [gate: width / 2][up: width / 2].
struct SiluGateParams {
  Product product;
  Bf16* output = nullptr;  // [rows][width / 2]
};

// From a product of rows [heads | kv_heads | kv_heads] of head_dim: norms of heads where there are
// weights, rotation of queries and keys by their position (dimension i against i + head_dim / 2),
// keys and values into their pages in the pages' code, queries to `queries`. What a page gets is,
// byte for byte, what kv_quant.h makes of rows rounded to bf16.
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
  const int64_t* slots = nullptr;  // [rows]: block << page_log2 | slot; negative: keep nothing
};

// output = the product's sum; `output` may be where its first slice is.
struct SumSlicesParams {
  Product product;
  float* output = nullptr;  // [rows][width]
};

// x[from[i]] becomes y[i], rows of `width` 4-byte words.
struct GatherRowsParams {
  const uint32_t* input = nullptr;
  uint32_t* output = nullptr;
  const int32_t* from = nullptr;
  int32_t width = 0;
};

}  // namespace penstock::cuda
