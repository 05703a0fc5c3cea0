#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "kernels/bf16.h"
#include "kernels/cuda/kv_planes.h"

namespace penstock::cuda {

constexpr int kDecodeWarps = 4;  // of a block
constexpr int kTileTokens = 16;
// Where a sequence is cut, counted from its start: a constant, so that the bits of a row depend on
// its own tokens alone.
constexpr int kSplitTokens = 256;

// Tiles [tile_begin, tile_end) of a sequence: the work of one block per KV head. A negative
// sequence is padding.
struct DecodeItem {
  int32_t sequence = -1;
  int32_t split = 0;
  int32_t tile_begin = 0;
  int32_t tile_end = 0;
};

struct DecodePlan {
  std::vector<DecodeItem> items;      // longest first
  std::vector<int32_t> split_counts;  // of each sequence
  int32_t max_splits = 1;
};

// lengths[i] tokens, at least 1, are in the pages of sequence i; `window` as in AttentionArgs.
DecodePlan PlanDecode(std::span<const int32_t> lengths, int32_t window);

// All pointers are to device memory.
struct DecodeParams {
  const Bf16* queries = nullptr;  // [sequences][heads][head_dim]
  int64_t query_stride = 0;       // elements between sequences
  Bf16* output = nullptr;         // [sequences][heads][head_dim]
  int64_t output_stride = 0;
  KvPlanes kv;
  const uint32_t* tables = nullptr;  // [sequences] of table_stride blocks
  int64_t table_stride = 0;
  const int32_t* lengths = nullptr;  // [sequences]
  const DecodeItem* items = nullptr;
  const int32_t* split_counts = nullptr;  // [sequences]
  int32_t max_splits = 1;                 // 1: nothing is combined
  float* partial_outputs = nullptr;       // [sequences][heads][max_splits][head_dim]
  float* partial_stats = nullptr;         // [sequences][heads][max_splits][2]
  int32_t heads = 0;
  int32_t group = 0;  // query heads of a KV head
  int32_t window = 0;
  float scale_log2 = 0;  // of the scores, times log2(e)
};

}  // namespace penstock::cuda
