#pragma once

#include <cstdint>

#include "kernels/cuda/attention_params.h"
#include "kernels/cuda/row_params.h"

// Multi-head latent attention in the form of kernels/latents.h: attention sees latents alone, for
// prompts and for answers. All pointers are to device memory. The bits of a row depend on its
// sequence and position only.
//
// This room, kernels/cuda/latents, says what its kernels (kernels/cuda/device/latents) take. It may
// use kernels/cuda.

namespace penstock::cuda {

// The sizes that the kernels take, which are those of all published models: of a latent, and of the
// rotated key behind it.
constexpr int32_t kLatentRank = 512, kLatentRopeDims = 64;
constexpr int32_t kLatentRow = kLatentRank + kLatentRopeDims;
// Attention of a prompt's rows has no wider tiles: registers hold the outputs of 16 rows only. One
// token of 128 heads is split, as long as the shares of a step take 128 MiB at most.
constexpr TileRows kLatentTiles = {.wide = kNarrowRows, .narrow_max = 128, .shares_max = 65000};

// True if the pages are of latents in bf16 that the kernels take, with 16 to 1,024 tokens.
bool SupportsLatents(const KvPlanes& kv);

// output = product / rms(product) * weight.
struct LatentNormParams {
  Product product;                // its width is a multiple of 4
  const float* weight = nullptr;  // [width]
  float epsilon = 0;
  Bf16* output = nullptr;  // [rows][width]
};

// Normalises the latents of a product with rows of kLatentRow, rotates the keys behind them, and
// stores both in their pages.
struct LatentAppendParams {
  Product product;
  const float* norm = nullptr;  // [kLatentRank]
  float epsilon = 0;
  const float* cosines = nullptr;  // [rows][kLatentRopeDims / 2]
  const float* sines = nullptr;
  int32_t rows = 0;
  KvPlanes kv;
  const int64_t* slots = nullptr;  // as in RopeAppendParams
};

// Rotates the last kLatentRopeDims of every head's query.
struct LatentQueryParams {
  Product product;                 // [rows][heads][plain_dims + kLatentRopeDims]
  const float* cosines = nullptr;  // [rows][kLatentRopeDims / 2]
  const float* sines = nullptr;
  int32_t rows = 0;
  int32_t heads = 0;
  int32_t plain_dims = 0;   // a multiple of 8
  Bf16* queries = nullptr;  // as the product's rows
};

// For each head a product of its own, of bf16 matrices, rounded to bf16.
struct HeadProductParams {
  const Bf16* matrices = nullptr;  // [heads][outputs][inputs]
  int32_t heads = 0;
  int32_t outputs = 0;
  int32_t inputs = 0;           // a multiple of 8
  const Bf16* input = nullptr;  // [rows][heads][input_step], of which the first `inputs`
  int32_t input_step = 0;
  int32_t rows = 0;
  Bf16* output = nullptr;  // [rows][heads][outputs]
};

// The queries of `attention` are products with the heads' key matrices, [rows][heads][kLatentRank],
// and so are its outputs, which are sums of latents. Its group is the number of heads. It needs no
// wide_scratch.
struct LatentAttentionParams {
  AttentionParams attention;
  const Bf16* rotated = nullptr;  // the rotated part of the first head's query
  int64_t rotated_stride = 0;     // from row to row
  int32_t rotated_step = 0;       // from head to head
};

void LatentNorm(const LatentNormParams& params, int rows, void* stream);
void LatentAppend(const LatentAppendParams& params, void* stream);
void LatentQueries(const LatentQueryParams& params, void* stream);
void HeadProducts(const HeadProductParams& params, void* stream);
// Causal attention of the tiles of PlanAttention(sequences, heads, kLatentTiles).
void LatentAttention(const LatentAttentionParams& params, const AttentionCounts& counts,
                     void* stream);

}  // namespace penstock::cuda
