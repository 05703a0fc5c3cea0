#pragma once

// The upper bound of query * key over the keys of each page, summed over the query heads of a KV
// head. The bound is linear in the positive and in the negative part of a query, so the sum over
// the heads is one product with the greatest and the least keys.

#include "kernels/cuda/device/device.cuh"
#include "kernels/cuda/selection/selection.h"

namespace penstock::cuda {

constexpr int kScoreThreads = 128, kScoreWarps = kScoreThreads / 32;
constexpr int kScoredAtOnce = 4;      // pages whose bounds a warp loads together
constexpr int kScoredPages = 64;      // of a block
constexpr int kAlwaysChosenLast = 2;  // pages, which need no score

PENSTOCK_DEVICE float* ScoresOf(const ChoosePagesParams& p, int row, int kv_head) {
  return p.scores + (int64_t{row} * p.kv_heads + kv_head) * p.pages_max;
}

// A lane's part of a row of [2][head_dim] elements: of the greatest keys in lanes 0 to 15, of the
// least in lanes 16 to 31.
template <int kDim>
struct BoundsPart {
  static constexpr int kElements = 2 * kDim / 32;
  float query[kElements];  // what the lane's bounds are multiplied with

  PENSTOCK_DEVICE BoundsPart(const ChoosePagesParams& p, int row, int kv_head, int lane) {
    const bool greatest = lane < 16;
    const Bf16* from = p.queries + p.rows[row].query * p.query_stride + kv_head * p.group * kDim +
                       lane % 16 * kElements;
    PENSTOCK_UNROLL
    for (int e = 0; e < kElements; ++e) query[e] = 0;
    for (int head = 0; head < p.group; ++head, from += kDim) {
      PENSTOCK_UNROLL
      for (int e = 0; e < kElements; ++e) {
        const float x = WidenBf16(from[e].bits);
        query[e] = Add(query[e], greatest ? fmaxf(x, 0.0f) : fminf(x, 0.0f));
      }
    }
  }

  // Loads the lane's bounds of a page.
  static PENSTOCK_DEVICE void Load(const Bf16* bounds, int lane, uint32_t (&words)[kElements / 2]) {
    const auto* from = reinterpret_cast<const uint32_t*>(bounds + lane * kElements);
    if constexpr (kElements == 8) {
      const Words4 loaded = *reinterpret_cast<const Words4*>(from);
      PENSTOCK_UNROLL
      for (int w = 0; w < 4; ++w) words[w] = loaded.word[w];
    } else {
      const Words2 loaded = *reinterpret_cast<const Words2*>(from);
      PENSTOCK_UNROLL
      for (int w = 0; w < 2; ++w) words[w] = loaded.word[w];
    }
  }

  // The product of a whole row; every lane has it.
  PENSTOCK_DEVICE float Multiplied(const uint32_t (&words)[kElements / 2]) const {
    float sum = 0;
    PENSTOCK_UNROLL
    for (int w = 0; w < kElements / 2; ++w) {
      sum = Add(sum, Multiply(query[2 * w], LowBf16(words[w])));
      sum = Add(sum, Multiply(query[2 * w + 1], HighBf16(words[w])));
    }
    PENSTOCK_UNROLL
    for (int mask = 16; mask > 0; mask /= 2) sum = Add(sum, ShuffleXor(sum, mask));
    return sum;
  }
};

// Grid: parts of kScoredPages pages x KV heads x rows.
template <int kDim>
__global__ void __launch_bounds__(kScoreThreads)
    ScorePagesKernel(const __grid_constant__ ChoosePagesParams p) {
  using Part = BoundsPart<kDim>;
  const int kv_head = BlockY(), row = BlockZ(), warp = ThreadX() / 32, lane = ThreadX() % 32;
  const int begin = BlockX() * kScoredPages, scored = p.rows[row].pages - kAlwaysChosenLast;
  if (begin >= scored) return;
  const int end = begin + kScoredPages < scored ? begin + kScoredPages : scored;
  const uint32_t* table = p.tables + p.rows[row].table * p.table_stride;
  float* scores = ScoresOf(p, row, kv_head);
  const Part part(p, row, kv_head, lane);
  for (int first = begin + warp * kScoredAtOnce; first < end;
       first += kScoreWarps * kScoredAtOnce) {
    uint32_t words[kScoredAtOnce][Part::kElements / 2];
    PENSTOCK_UNROLL
    for (int i = 0; i < kScoredAtOnce; ++i) {
      const int page = first + i < end ? first + i : first;
      Part::Load(p.bounds.layer + int64_t{table[page]} * p.bounds.block_stride + kv_head * 2 * kDim,
                 lane, words[i]);
    }
    PENSTOCK_UNROLL
    for (int i = 0; i < kScoredAtOnce; ++i) {
      const float score = part.Multiplied(words[i]);
      if (lane == i && first + i < end) scores[first + i] = score;
    }
  }
}

}  // namespace penstock::cuda
