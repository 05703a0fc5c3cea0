#include "kernels/cuda/device/eviction/key_attention.cuh"
#include "kernels/cuda/device/eviction/key_scores.cuh"
#include "kernels/cuda/device/eviction/move_slots.cuh"
#include "kernels/cuda/for_codes.h"

namespace penstock::cuda {
namespace {

int Pieces(int64_t size, int64_t each) { return static_cast<int>((size + each - 1) / each); }

// A launch over tiles, or splits, of the keys of all KV heads, with `floats` of shared memory
// behind the tile.
template <class Tiles>
LaunchShape Grid(const KeyScoreParams& params, int64_t tokens_each, int64_t floats) {
  return {.x = Pieces(params.tokens, tokens_each),
          .y = params.kv.kv_heads,
          .threads = Tiles::kThreads,
          .shared_bytes = Tiles::kBytes + static_cast<size_t>(floats) * sizeof(float)};
}

}  // namespace

void AddKeyAttention(const KeyScoreParams& params, void* stream) {
  ForShape(params.kv, [&]<KvCode kKeys, KvCode, int kDim>() {
    using Tiles = KeyTiles<kKeys, kDim>;
    constexpr int kRows = RowScores<Tiles>::kRows;
    const int rows = params.observed * params.group;
    LaunchShape measure = Grid<Tiles>(params, kScoreSplitTokens, 0);
    measure.z = Pieces(rows, kRows);
    Launch(&MeasureRowsKernel<kKeys, kDim>, measure, params, stream);
    const LaunchShape merge{.x = Pieces(rows, kMergeRowsThreads),
                            .y = params.kv.kv_heads,
                            .threads = kMergeRowsThreads};
    Launch(&MergeRowsKernel, merge, params, stream);
    Launch(&AddWeightsKernel<kKeys, kDim>,
           Grid<Tiles>(params, Tiles::kTokens, kRows * Tiles::kTokens), params, stream);
  });
}

void ScoreKeyDifferences(const KeyScoreParams& params, void* stream) {
  ForShape(params.kv, [&]<KvCode kKeys, KvCode, int kDim>() {
    using Tiles = KeyTiles<kKeys, kDim>;
    Launch(&KeyMeanKernel<kKeys, kDim>, Grid<Tiles>(params, kScoreSplitTokens, Tiles::kTokens),
           params, stream);
    const LaunchShape merge{
        .x = params.kv.kv_heads, .threads = kDim, .shared_bytes = kDim * sizeof(float)};
    Launch(&MergeMeansKernel<kDim>, merge, params, stream);
    Launch(&KeyDifferenceKernel<kKeys, kDim>, Grid<Tiles>(params, Tiles::kTokens, 0), params,
           stream);
  });
}

void ScoreKeyNorms(const KeyScoreParams& params, void* stream) {
  ForShape(params.kv, [&]<KvCode kKeys, KvCode, int kDim>() {
    using Tiles = KeyTiles<kKeys, kDim>;
    Launch(&KeyNormKernel<kKeys, kDim>, Grid<Tiles>(params, Tiles::kTokens, 0), params, stream);
  });
}

void MoveSlots(const MoveSlotsParams& params, void* stream) {
  const KvPlanes& kv = params.kv;
  const int longest =
      kv.keys.row_bytes > kv.values.row_bytes ? kv.keys.row_bytes : kv.values.row_bytes;
  const LaunchShape shape{.x = 1 + Pieces(longest, 8 * kMoveWords),
                          .y = 2 * kv.kv_heads,
                          .z = params.in_place ? 1 : Pieces(params.kept, kMoveSlots),
                          .threads = kMoveThreads};
  Launch(&MoveSlotsKernel, shape, params, stream);
}

}  // namespace penstock::cuda
