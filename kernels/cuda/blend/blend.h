#pragma once

#include <cstdint>

#include "kernels/bf16.h"
#include "kernels/cuda/kv_planes.h"

// The kernels of kernels/blend on a GPU (CacheBlend, Yao et al., arXiv 2405.16444), for pages in
// bf16: keys and values move to other positions, and re-used values are compared with computed
// ones. This room, kernels/cuda/blend, has their launch arguments. It may use kernels/ and
// kernels/cuda.

namespace penstock::cuda {

// The rotations of keys by the difference of two positions, of one table of frequencies.
struct KeyTurns {
  const float* cosines = nullptr;  // [tokens][pairs], on the device
  const float* sines = nullptr;    // likewise
  int32_t pairs = 0;               // elements d and d + pairs of a head are one
};
constexpr int kKeyTurnsMax = 2;

// Arguments of MoveTokens. All pointers are to device memory. A slot is block * block_tokens + the
// place in the block; no slot is in both lists.
struct MoveTokensParams {
  KvPlanes kv;               // of layer 0, in bf16
  int64_t layer_stride = 0;  // bytes from a layer of a block to the next
  int32_t layers = 0;
  const int64_t* from = nullptr;  // slots, [tokens]
  const int64_t* to = nullptr;    // likewise
  KeyTurns turns[kKeyTurnsMax];
  const int32_t* turns_of = nullptr;  // the index in `turns` of each layer; -1: keys are copied
};
// Copies the KV of tokens, of all layers, to other slots. Keys are rotated in f32 and rounded
// again. The result of a token does not depend on the others.
void MoveTokens(const MoveTokensParams& params, int tokens, void* stream);

// Arguments of ReadValues and CompareValues. All pointers are to device memory.
struct ValuesParams {
  KvPlanes kv;                     // of the layer, in bf16
  const int64_t* slots = nullptr;  // [rows]
  Bf16* values = nullptr;          // [rows][kv_heads * head_dim]
  float* squares = nullptr;        // [rows][2]
};
// Copies the values of one layer, which the pages have, to `values`.
void ReadValues(const ValuesParams& params, int rows, void* stream);
// Writes for each row the sum of the squares of the differences between `values` and those that the
// pages have now, and the sum of the squares of the latter.
void CompareValues(const ValuesParams& params, int rows, void* stream);

}  // namespace penstock::cuda
