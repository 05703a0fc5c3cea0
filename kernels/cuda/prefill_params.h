#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "kernels/bf16.h"
#include "kernels/cuda/kv_planes.h"

namespace penstock::cuda {

constexpr int kPrefillTileRows = 128;  // a row is one query head of one token

// Queries of a sequence: rows [first_row, first_row + rows) of the batch, at positions from
// `position` on. The pages have its position + rows tokens, these rows' own included.
struct PrefillSequence {
  int32_t first_row = 0;
  int32_t rows = 0;
  int32_t position = 0;
};

// Rows [first, first + kPrefillTileRows) of a sequence's rows * group: the work of one block per KV
// head.
struct PrefillTile {
  int32_t sequence = -1;
  int32_t first = 0;
};

// `group` query heads per KV head. The longest histories first.
std::vector<PrefillTile> PlanPrefill(std::span<const PrefillSequence> sequences, int32_t group);

// All pointers are to device memory.
struct PrefillParams {
  const Bf16* queries = nullptr;  // [rows][heads][head_dim]
  int64_t query_stride = 0;       // elements between rows
  Bf16* output = nullptr;         // [rows][heads][head_dim]
  int64_t output_stride = 0;
  KvPlanes kv;
  const uint32_t* tables = nullptr;  // [sequences] of table_stride blocks
  int64_t table_stride = 0;
  const PrefillSequence* sequences = nullptr;
  const PrefillTile* tiles = nullptr;
  int32_t group = 0;
  int32_t window = 0;
  float scale_log2 = 0;
};

}  // namespace penstock::cuda
