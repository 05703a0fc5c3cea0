#pragma once

#include <cstddef>
#include <cstdint>

#include "kernels/bf16.h"
#include "kernels/cuda/kv_planes.h"

// The kernels of kernels/eviction on a GPU: scores of keys, and the copies of the slots that stay.
// This room, kernels/cuda/eviction, has their launch arguments. It may use kernels/ and
// kernels/cuda.

namespace penstock::cuda {

// The tokens of a split. A sum over a sequence's tokens is made split by split, from slot 0 on, and
// the sums of splits are added up in ascending order. So no bit depends on the number of thread
// blocks that share the work.
constexpr int kScoreSplitTokens = 512;
// The most tokens whose queries one launch takes.
constexpr int kScoredQueriesMax = 64;

// Arguments of the scores of one layer's keys. All pointers are to device memory.
struct KeyScoreParams {
  KvPlanes kv;
  const uint32_t* table = nullptr;  // page ids
  int32_t tokens = 0;               // whose keys are in slots [0, tokens)
  float* scores = nullptr;          // [kv_heads][score_stride]
  int64_t score_stride = 0;
  float* scratch = nullptr;  // of KeyScoreScratchFloats
  // For attention only: the queries of the tokens in slots [first, first + observed),
  // [observed][kv_heads * group * head_dim]. If keys are stored rotated, so are the queries.
  const Bf16* queries = nullptr;
  int32_t observed = 0;  // at most kScoredQueriesMax
  int32_t first = 0;
  int32_t group = 0;  // query heads per KV head
  // As in AttentionParams.
  float scale_log2 = 0;
  float cap_factor = 0;
};
constexpr int64_t ScoreSplits(int64_t tokens) {
  return (tokens + kScoreSplitTokens - 1) / kScoreSplitTokens;
}
// Room for the sums of every split, and for what they are merged to: of the rows of
// kScoredQueriesMax tokens, a maximum and a sum; of a mean key, its elements and its norm.
constexpr size_t KeyScoreScratchFloats(int64_t tokens, int32_t kv_heads, int32_t group,
                                       int32_t head_dim) {
  const int64_t rows = int64_t{2} * kScoredQueriesMax * group, mean = head_dim + 1;
  return static_cast<size_t>((ScoreSplits(tokens) + 1) * kv_heads * (rows > mean ? rows : mean));
}

// Adds each query's attention to the scores, one after the other in the order of tokens and heads:
// however the queries of a sequence are divided into calls, in order, no bit changes.
void AddKeyAttention(const KeyScoreParams& params, void* stream);
// Less the cosine of a key and the mean of all normalised keys.
void ScoreKeyDifferences(const KeyScoreParams& params, void* stream);
// Less the norm of a key.
void ScoreKeyNorms(const KeyScoreParams& params, void* stream);

// Arguments of MoveSlots. All pointers are to device memory.
struct MoveSlotsParams {
  KvPlanes kv;
  const uint32_t* from = nullptr;   // page ids
  const uint32_t* to = nullptr;     // page ids
  const uint32_t* slots = nullptr;  // [kv_heads][kept]
  int32_t kept = 0;
  bool in_place = false;  // some page is in both tables: slots ascend, and none is moved upwards
};
// Copies slot slots[head][i] of each KV head in `from` to slot i in `to`: codes and scales, bit by
// bit. Without in_place no page is in both.
void MoveSlots(const MoveSlotsParams& params, void* stream);

}  // namespace penstock::cuda
