#pragma once

// Scores that the keys alone give: their norms, and how far they are from the mean key.

#include "kernels/cuda/device/eviction/key_tiles.cuh"

namespace penstock::cuda {

// Grid: tiles x KV heads.
template <KvCode kCode, int kDim>
__global__ void __launch_bounds__(KeyTiles<kCode, kDim>::kThreads)
    KeyNormKernel(const __grid_constant__ KeyScoreParams p) {
  using Tiles = KeyTiles<kCode, kDim>;
  const int tile = BlockX(), kv_head = BlockY(), row = ThreadX();
  const int token = tile * Tiles::kTokens + row;
  const uint8_t* keys = Tiles::Load(p, kv_head, tile);
  if (row >= Tiles::kTokens || token >= p.tokens) return;
  p.scores[kv_head * p.score_stride + token] = -Tiles::Norm(keys, row);
}

// The sum of a split's normalised keys, or of all of them, and behind them its norm.
template <int kDim>
PENSTOCK_DEVICE float* MeanOf(const KeyScoreParams& p, int64_t split, int kv_head) {
  return p.scratch + (split * p.kv.kv_heads + kv_head) * (kDim + 1);
}

// Adds up the normalised keys of a split. Grid: splits x KV heads.
template <KvCode kCode, int kDim>
__global__ void __launch_bounds__(KeyTiles<kCode, kDim>::kThreads)
    KeyMeanKernel(const __grid_constant__ KeyScoreParams p) {
  using Tiles = KeyTiles<kCode, kDim>;
  static_assert(kDim <= Tiles::kThreads);
  auto* inverse = reinterpret_cast<float*>(SharedMemory() + Tiles::kBytes);  // of each row's norm
  const int split = BlockX(), kv_head = BlockY(), thread = ThreadX();
  const int begin = split * Tiles::kTilesOfSplit, all = (p.tokens - 1) / Tiles::kTokens + 1;
  const int end = begin + Tiles::kTilesOfSplit < all ? begin + Tiles::kTilesOfSplit : all;
  float sum = 0;
  for (int tile = begin; tile < end; ++tile) {
    const uint8_t* keys = Tiles::Load(p, kv_head, tile);
    if (thread < Tiles::kTokens) {
      const float norm = Tiles::Norm(keys, thread);
      inverse[thread] = norm > 0 ? Divide(1.0f, norm) : 0.0f;
    }
    SyncBlock();  // every norm is known
    if (thread >= kDim) continue;
    for (int row = 0; row < Tiles::kTokens; ++row) {
      sum = Add(sum, Multiply(Tiles::At(keys, row, thread), inverse[row]));
    }
  }
  if (thread < kDim) MeanOf<kDim>(p, split, kv_head)[thread] = sum;
}

// Adds up the splits. Grid: KV heads; a thread for each element.
template <int kDim>
__global__ void __launch_bounds__(kDim) MergeMeansKernel(const __grid_constant__ KeyScoreParams p) {
  auto* squares = reinterpret_cast<float*>(SharedMemory());
  const int kv_head = BlockX(), element = ThreadX();
  const int64_t splits = ScoreSplits(p.tokens);
  float sum = 0;
  for (int64_t split = 0; split < splits; ++split) {
    sum = Add(sum, MeanOf<kDim>(p, split, kv_head)[element]);
  }
  float* mean = MeanOf<kDim>(p, splits, kv_head);
  mean[element] = sum;
  squares[element] = Multiply(sum, sum);
  SyncBlock();
  if (element != 0) return;
  float norm = 0;
  for (int i = 0; i < kDim; ++i) norm = Add(norm, squares[i]);
  mean[kDim] = SquareRoot(norm);
}

// Grid: tiles x KV heads.
template <KvCode kCode, int kDim>
__global__ void __launch_bounds__(KeyTiles<kCode, kDim>::kThreads)
    KeyDifferenceKernel(const __grid_constant__ KeyScoreParams p) {
  using Tiles = KeyTiles<kCode, kDim>;
  const int tile = BlockX(), kv_head = BlockY(), row = ThreadX();
  const int token = tile * Tiles::kTokens + row;
  const uint8_t* keys = Tiles::Load(p, kv_head, tile);
  if (row >= Tiles::kTokens || token >= p.tokens) return;
  const float* mean = MeanOf<kDim>(p, ScoreSplits(p.tokens), kv_head);
  float dot = 0;
  Tiles::ForElements(keys, row, [&](int i, float x) { dot = Add(dot, Multiply(x, mean[i])); });
  const float norms = Multiply(Tiles::Norm(keys, row), mean[kDim]);
  p.scores[kv_head * p.score_stride + token] = norms > 0 ? -Divide(dot, norms) : 0.0f;
}

}  // namespace penstock::cuda
