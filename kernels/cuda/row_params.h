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
  // Learned embeddings of positions, which are added; null: none.
  const Bf16* position_table = nullptr;  // [positions][hidden]
  const int32_t* positions = nullptr;    // [rows]
  float multiplier = 1;                  // of the sum
};

// The longest row that AddNorm keeps in registers.
constexpr int32_t kHiddenMax = 16384;

// residual += product (if it has slices); output = residual / rms(residual) * weight. The fields
// below epsilon are for models that do otherwise.
struct NormParams {
  float* residual = nullptr;      // [rows][hidden]
  Product product;                // width == hidden
  const float* weight = nullptr;  // [hidden]; null: output = residual
  Bf16* output = nullptr;         // [rows][hidden]
  int32_t hidden = 0;             // a multiple of 4, at most kHiddenMax
  float epsilon = 1e-5f;
  const float* bias = nullptr;  // [hidden]: the output is a layer norm with it; null: an RMS norm
  // The weight of an RMS norm of the product before it is added, [hidden]; null: no such norm.
  const float* product_norm = nullptr;
  float factor = 1;          // of the product, behind its norm
  bool norms_first = false;  // the output is of the residual without the product

  bool IsPlain() const {
    return weight != nullptr && bias == nullptr && product_norm == nullptr && factor == 1 &&
           !norms_first;
  }
};

// output = silu(gate) * up for a product with rows [gate: width / 2][up: width / 2]; width is a
// multiple of 8.
struct SiluGateParams {
  Product product;
  Bf16* output = nullptr;  // [rows][width / 2]
};

// The activations of MLPs that are not silu(gate) * up. kTanhGate: gelu(gate) * up, with rows as in
// SiluGateParams. The others have no gate: gelu(up). Tanh marks GELU's approximation by tanh.
enum class GeluKind : uint8_t { kTanhGate, kTanh, kExact };
struct GeluParams {
  Product product;         // its width is a multiple of 8
  Bf16* output = nullptr;  // [rows][width, or width / 2 with a gate]
  GeluKind kind = GeluKind::kTanhGate;
};

// RMS norms over all heads of queries together, and over all heads of keys (OLMo 2). Writes the sum
// of the product's slices with these norms; values are sums alone.
struct WideHeadNormParams {
  Product product;                    // rows as in RopeAppendParams
  float* output = nullptr;            // [rows][width]; may be the address of the first slice
  const float* query_norm = nullptr;  // [query_width]
  const float* key_norm = nullptr;    // [key_width]
  int32_t query_width = 0;            // multiples of 4
  int32_t key_width = 0;
  float epsilon = 1e-5f;
};

// Input: a product with rows [heads | kv_heads | kv_heads] of head_dim elements. Normalises the
// heads whose weight is given, rotates queries and keys by their position (RoPE, dimension i
// against i + rotary_dims / 2 of the first rotary_dims), stores keys and values in their pages in
// the pages' code, and writes the queries to `queries`. The stored bytes equal those of kv_quant.h
// for rows rounded to bf16.
struct RopeAppendParams {
  Product product;
  const float* cosines = nullptr;  // [rows][rotary_dims / 2]
  const float* sines = nullptr;
  const float* query_norm = nullptr;  // [head_dim], or null
  const float* key_norm = nullptr;
  float epsilon = 1e-5f;
  Bf16* queries = nullptr;  // [rows][heads][head_dim]
  int32_t heads = 0;
  int32_t rows = 0;
  int32_t rotary_dims = 0;  // a multiple of 8, at most head_dim; 0: no rotation
  KvPlanes kv;
  const int64_t* slots = nullptr;  // [rows]: block << page_log2 | slot; negative: not stored
  // With a span (KvPageFormat), the second copy of each row, in bf16: rotated where `kv` is.
  KvPlanes recent = {};                   // `layer` null: there is none
  const int64_t* recent_slots = nullptr;  // [rows], in the pages of `recent`
  // With centred keys (KvPageFormat), which need a span: the first copy of a key is without the
  // mean of its KV head, rotated to the token's position. The product of a query with the mean at a
  // position is a sum of that position's cosines and sines; centre queries are the factors.
  const float* key_means = nullptr;  // [kv_heads][head_dim], before rotation; null: keys are whole
  Bf16* centre_queries = nullptr;    // [rows][heads][head_dim]
};

// output = the sum of the product's slices times `factor`, and then cap * tanh(output / cap) if
// there is a cap. `output` may be the address of the first slice.
struct SumSlicesParams {
  Product product;
  float* output = nullptr;  // [rows][width]
  float factor = 1;
  float cap = 0;  // 0: none
};

// output[i] = input[from[i]] for rows of `width` 4-byte words.
struct GatherRowsParams {
  const uint32_t* input = nullptr;
  uint32_t* output = nullptr;
  const int32_t* from = nullptr;
  int32_t width = 0;
};

}  // namespace penstock::cuda
