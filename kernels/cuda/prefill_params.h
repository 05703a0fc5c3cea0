#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "kernels/bf16.h"
#include "kernels/cuda/kv_planes.h"

namespace penstock::cuda {

constexpr int kPrefillTileRows = 128;  // a row is one query head of one token

// The queries of one sequence: rows [first_row, first_row + rows) of the batch, at positions from
// `position` on. The pages hold all position + rows tokens, including those of these rows.
struct PrefillSequence {
  int32_t first_row = 0;
  int32_t rows = 0;
  int32_t position = 0;
};

// Rows [first, first + kPrefillTileRows) of the rows * group rows of a sequence: the work of one
// block per KV head.
struct PrefillTile {
  int32_t sequence = -1;
  int32_t first = 0;
};

// Plans a prefill step; `group` is the number of query heads per KV head. Tiles with the longest
// history come first.
std::vector<PrefillTile> PlanPrefill(std::span<const PrefillSequence> sequences, int32_t group);

// Arguments of PrefillAttention. All pointers are to device memory; strides are in elements.
struct PrefillParams {
  const Bf16* queries = nullptr;  // [rows][heads][head_dim]
  int64_t query_stride = 0;       // from one row to the next
  Bf16* output = nullptr;         // [rows][heads][head_dim]
  int64_t output_stride = 0;
  KvPlanes kv;
  const uint32_t* tables = nullptr;  // page ids, [sequences][table_stride]
  int64_t table_stride = 0;
  const PrefillSequence* sequences = nullptr;
  const PrefillTile* tiles = nullptr;
  int32_t group = 0;     // query heads per KV head
  int32_t window = 0;    // as in AttentionArgs
  float scale_log2 = 0;  // factor of the scores times log2(e)
};

}  // namespace penstock::cuda
