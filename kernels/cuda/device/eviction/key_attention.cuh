#pragma once

// The attention of observed queries to every key, summed over the queries. A row is one query head
// of one token. Two passes, as a row's maximum and sum are known only behind its last key: the
// first measures the rows, split by split, and the second adds up their weights.

#include "kernels/cuda/device/eviction/key_tiles.cuh"

namespace penstock::cuda {

// The maximum of a row's scores, and the sum of their weights relative to it. When splits are
// merged, the sum is replaced by its inverse.
struct RowMeasure {
  float max, sum;
};
PENSTOCK_DEVICE int RowsOf(const KeyScoreParams& p) { return p.observed * p.group; }
// The measure of a row in one split. The scratch memory is [splits + 1][kv_heads][rows]: behind the
// splits it has the merged measures.
PENSTOCK_DEVICE RowMeasure& MeasureOf(const KeyScoreParams& p, int64_t split, int kv_head,
                                      int row) {
  auto* all = reinterpret_cast<RowMeasure*>(p.scratch);
  return all[(split * p.kv.kv_heads + kv_head) * RowsOf(p) + row];
}

// The scores of 64 rows and a tile of keys; each warp has 16 of the rows.
template <class Tiles>
struct RowScores {
  static constexpr int kRows = 16 * Tiles::kWarps, kDim = Tiles::kDim;
  static constexpr int kScoreTiles = Tiles::kTokens / 8, kSteps = kDim / 16;

  const KeyScoreParams& p;
  const int kv_head, rows, lane, group, member;
  int first_row = 0;  // of this warp
  uint32_t query[kSteps][4];
  float scores[kScoreTiles][4];  // times log2(e); minus infinity where a row does not see the key

  PENSTOCK_DEVICE RowScores(const KeyScoreParams& params, int head)
      : p(params),
        kv_head(head),
        rows(RowsOf(params)),
        lane(ThreadX() % 32),
        group(lane >> 2),
        member(lane & 3) {}

  PENSTOCK_DEVICE int Row(int r) const { return first_row + group + 8 * r; }

  PENSTOCK_DEVICE uint32_t QueryWord(int r, int element) const {
    const int row = Row(r);
    if (row >= rows) return 0;
    const int64_t head =
        int64_t{row / p.group} * p.kv.kv_heads * p.group + kv_head * p.group + row % p.group;
    return *reinterpret_cast<const uint32_t*>(p.queries + head * kDim + element);
  }
  PENSTOCK_DEVICE void LoadQueries(int first_of_block) {
    first_row = first_of_block + ThreadX() / 32 * 16;
    PENSTOCK_UNROLL
    for (int k = 0; k < kSteps; ++k) {
      PENSTOCK_UNROLL
      for (int i = 0; i < 4; ++i) query[k][i] = QueryWord(i % 2, k * 16 + member * 2 + i / 2 * 8);
    }
  }

  PENSTOCK_DEVICE void Multiply(const uint8_t* keys) {
    PENSTOCK_UNROLL
    for (int j = 0; j < kScoreTiles; ++j) {
      scores[j][0] = scores[j][1] = scores[j][2] = scores[j][3] = 0;
    }
    PENSTOCK_UNROLL
    for (int k = 0; k < kSteps; ++k) {
      PENSTOCK_UNROLL
      for (int j = 0; j < kScoreTiles; j += 2) {
        uint32_t b[4];
        LoadMatrix4(b, keys + Swizzled<Tiles::kRow>(j * 8 + ChunksThenRowsRow(lane),
                                                    2 * k + ChunksThenRowsChunk(lane)));
        Mma<true>(scores[j], query[k], b[0], b[1]);
        Mma<true>(scores[j + 1], query[k], b[2], b[3]);
      }
    }
  }

  // Scales and caps as attention does, and masks keys behind the row's token.
  PENSTOCK_DEVICE void Scale(int tile) {
    PENSTOCK_UNROLL
    for (int j = 0; j < kScoreTiles; ++j) {
      PENSTOCK_UNROLL
      for (int i = 0; i < 4; ++i) {
        float& x = scores[j][i];
        if (p.cap_factor != 0) {
          const float grown = Add(1.0f, Exp2(cuda::Multiply(x, p.cap_factor)));
          x = Add(1.0f, cuda::Multiply(-2.0f, Reciprocal(grown)));
        }
        x = cuda::Multiply(x, p.scale_log2);
        const int token = tile * Tiles::kTokens + Column(j, i);
        if (token > p.first + Row(i / 2) / p.group) x = -INFINITY;
      }
    }
  }
  // The token of the tile that element i of a fragment belongs to.
  PENSTOCK_DEVICE int Column(int j, int i) const { return j * 8 + member * 2 + i % 2; }

  PENSTOCK_DEVICE void Score(const uint8_t* keys, int tile) {
    Multiply(keys);
    Scale(tile);
  }

  // Adds the tile to the measure of row r, of which this lane has some columns.
  PENSTOCK_DEVICE void Measure(int r, RowMeasure& measure) const {
    float top = measure.max;
    PENSTOCK_UNROLL
    for (int j = 0; j < kScoreTiles; ++j) {
      top = fmaxf(top, fmaxf(scores[j][2 * r], scores[j][2 * r + 1]));
    }
    top = fmaxf(top, ShuffleXor(top, 1));
    top = fmaxf(top, ShuffleXor(top, 2));
    const float shift = top == -INFINITY ? 0.0f : top;
    float sum = cuda::Multiply(measure.sum, Exp2(Add(measure.max, -shift)));
    PENSTOCK_UNROLL
    for (int j = 0; j < kScoreTiles; ++j) {
      sum = Add(sum, Exp2(Add(scores[j][2 * r], -shift)));
      sum = Add(sum, Exp2(Add(scores[j][2 * r + 1], -shift)));
    }
    measure = {top, sum};
  }
};

// Grid: splits x KV heads x 64 rows.
template <KvCode kCode, int kDim>
__global__ void __launch_bounds__(KeyTiles<kCode, kDim>::kThreads)
    MeasureRowsKernel(const __grid_constant__ KeyScoreParams p) {
  using Tiles = KeyTiles<kCode, kDim>;
  const int split = BlockX(), kv_head = BlockY();
  RowScores<Tiles> scores(p, kv_head);
  scores.LoadQueries(BlockZ() * RowScores<Tiles>::kRows);
  const int begin = split * Tiles::kTilesOfSplit, all = (p.tokens - 1) / Tiles::kTokens + 1;
  const int end = begin + Tiles::kTilesOfSplit < all ? begin + Tiles::kTilesOfSplit : all;
  RowMeasure measure[2] = {{-INFINITY, 0}, {-INFINITY, 0}};
  for (int tile = begin; tile < end; ++tile) {
    scores.Score(Tiles::Load(p, kv_head, tile), tile);
    scores.Measure(0, measure[0]);
    scores.Measure(1, measure[1]);
  }
  PENSTOCK_UNROLL
  for (int r = 0; r < 2; ++r) {
    float sum = measure[r].sum;
    sum = Add(sum, ShuffleXor(sum, 1));
    sum = Add(sum, ShuffleXor(sum, 2));
    const int row = scores.Row(r);
    if (scores.member != 0 || row >= scores.rows) continue;
    MeasureOf(p, split, kv_head, row) = {measure[r].max, sum};
  }
}

constexpr int kMergeRowsThreads = 128;
// Grid: rows / kMergeRowsThreads x KV heads.
__global__ void __launch_bounds__(kMergeRowsThreads)
    MergeRowsKernel(const __grid_constant__ KeyScoreParams p) {
  const int row = BlockX() * kMergeRowsThreads + ThreadX(), kv_head = BlockY();
  if (row >= RowsOf(p)) return;
  const int64_t splits = ScoreSplits(p.tokens);
  RowMeasure all{-INFINITY, 0};
  for (int64_t split = 0; split < splits; ++split) {
    const RowMeasure next = MeasureOf(p, split, kv_head, row);
    if (next.sum == 0) continue;  // the row does not see this split
    const float top = fmaxf(all.max, next.max);
    all.sum = Add(Multiply(all.sum, Exp2(Add(all.max, -top))),
                  Multiply(next.sum, Exp2(Add(next.max, -top))));
    all.max = top;
  }
  MeasureOf(p, splits, kv_head, row) = {all.max, Divide(1.0f, all.sum)};
}

// Grid: tiles x KV heads.
template <KvCode kCode, int kDim>
__global__ void __launch_bounds__(KeyTiles<kCode, kDim>::kThreads)
    AddWeightsKernel(const __grid_constant__ KeyScoreParams p) {
  using Tiles = KeyTiles<kCode, kDim>;
  using Scores = RowScores<Tiles>;
  auto* weights = reinterpret_cast<float*>(SharedMemory() + Tiles::kBytes);  // [rows][tokens]
  const int tile = BlockX(), kv_head = BlockY(), column = ThreadX();
  const int token = tile * Tiles::kTokens + column;
  const bool own = column < Tiles::kTokens && token < p.tokens;
  float* score = p.scores + kv_head * p.score_stride + token;
  float sum = own ? *score : 0.0f;
  const int64_t splits = ScoreSplits(p.tokens);
  Scores scores(p, kv_head);
  const uint8_t* keys = Tiles::Load(p, kv_head, tile);
  for (int first = 0; first < scores.rows; first += Scores::kRows) {
    scores.LoadQueries(first);
    scores.Score(keys, tile);
    PENSTOCK_UNROLL
    for (int r = 0; r < 2; ++r) {
      const int row = scores.Row(r);
      if (row >= scores.rows) continue;
      const RowMeasure measure = MeasureOf(p, splits, kv_head, row);
      PENSTOCK_UNROLL
      for (int j = 0; j < Scores::kScoreTiles; ++j) {
        PENSTOCK_UNROLL
        for (int e = 0; e < 2; ++e) {
          const float weight = Exp2(Add(scores.scores[j][2 * r + e], -measure.max));
          weights[(row - first) * Tiles::kTokens + scores.Column(j, e)] =
              Multiply(weight, measure.sum);
        }
      }
    }
    SyncBlock();  // the weights of all rows are there
    const int rest = scores.rows - first, rows = rest < Scores::kRows ? rest : Scores::kRows;
    for (int row = 0; own && row < rows; ++row) {
      sum = Add(sum, weights[row * Tiles::kTokens + column]);
    }
    SyncBlock();  // all are added up; they may be written again
  }
  if (own) *score = sum;
}

}  // namespace penstock::cuda
