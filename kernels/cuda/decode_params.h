#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "kernels/bf16.h"
#include "kernels/cuda/kv_planes.h"

namespace penstock::cuda {

constexpr int kDecodeWarps = 4;  // warps per block
constexpr int kTileTokens = 16;
// Sequences are split every kSplitTokens tokens, counted from the start. A constant, so that the
// bits of a row depend on the tokens of its sequence only.
constexpr int kSplitTokens = 256;

// Tiles [tile_begin, tile_end) of a sequence: the work of one block per KV head. A negative
// sequence marks padding.
struct DecodeItem {
  int32_t sequence = -1;
  int32_t split = 0;
  int32_t tile_begin = 0;
  int32_t tile_end = 0;
};

struct DecodePlan {
  std::vector<DecodeItem> items;      // longest item first
  std::vector<int32_t> split_counts;  // [sequences]
  int32_t max_splits = 1;
};

// Plans a decode step. Sequence i has lengths[i] >= 1 tokens in its pages; `window` is as in
// AttentionArgs.
DecodePlan PlanDecode(std::span<const int32_t> lengths, int32_t window);

// Arguments of DecodeAttention. All pointers are to device memory; strides are in elements.
struct DecodeParams {
  const Bf16* queries = nullptr;  // [sequences][heads][head_dim]
  int64_t query_stride = 0;       // from one sequence to the next
  Bf16* output = nullptr;         // [sequences][heads][head_dim]
  int64_t output_stride = 0;
  KvPlanes kv;
  const uint32_t* tables = nullptr;  // page ids, [sequences][table_stride]
  int64_t table_stride = 0;
  const int32_t* lengths = nullptr;  // tokens, [sequences]
  const DecodeItem* items = nullptr;
  const int32_t* split_counts = nullptr;  // [sequences]
  int32_t max_splits = 1;                 // 1: no combining pass
  float* partial_outputs = nullptr;       // [sequences][heads][max_splits][head_dim]
  float* partial_stats = nullptr;         // [sequences][heads][max_splits]{max, sum}
  int32_t heads = 0;
  int32_t group = 0;  // query heads per KV head
  int32_t window = 0;
  float scale_log2 = 0;  // factor of the scores times log2(e)
};

}  // namespace penstock::cuda
