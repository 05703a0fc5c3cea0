#pragma once

// Causal attention over a paged KV cache: FlashAttention-2 (Dao, arXiv 2307.08691) over splits of a
// sequence (Flash-Decoding: Dao et al., 2023). Rows of an mma are pairs (token, head of the group),
// so that one tile of K and V serves the whole group.
//
// The arithmetic of a row is fixed: tiles of tokens counted from position 0, in ascending order; a
// sum of its own for every kSplitTokens tokens; splits merged in ascending order. Wide tiles (many
// rows, one block walks all splits) and narrow ones (few rows, one block for each split) differ
// only in who does what, so that their bits are equal.
//
// This room, kernels/cuda/device/attention, has the attention kernels. It may use kernels/cuda and
// kernels/cuda/device.

#include "kernels/cuda/attention_params.h"
#include "kernels/cuda/device/attention/centred_keys.cuh"
#include "kernels/cuda/device/attention/kv_tile.cuh"
#include "kernels/cuda/device/attention/rotated_store.cuh"

namespace penstock::cuda {

struct alignas(16) FloatWords4 {
  float value[4];
};

// Merges splits of one row: the factors of the sums so far and of the next split.
struct SplitMerge {
  float keep, add;
};
PENSTOCK_DEVICE SplitMerge MergeMaximum(float& max, float split_max) {
  const float top = fmaxf(max, split_max);
  const float shift = top == -INFINITY ? 0.0f : top;
  const SplitMerge merge{Exp2(max - shift), Exp2(split_max - shift)};
  max = top;
  return merge;
}
PENSTOCK_DEVICE float Merged(SplitMerge merge, float value, float split_value) {
  return Add(Multiply(value, merge.keep), Multiply(split_value, merge.add));
}

// The factor of a row's outputs, when all its splits are merged. A sink is merged as a last split,
// of one score with the weight 1 and without a value.
template <bool kPlain>
PENSTOCK_DEVICE float OutputFactor(const AttentionParams& p, int head, float max, float sum) {
  if (kPlain || p.sinks == nullptr) return Divide(1.0f, sum);
  const SplitMerge merge = MergeMaximum(max, Multiply(p.sinks[head], 1.4426950408889634f));
  return Multiply(merge.keep, Divide(1.0f, Merged(merge, sum, 1.0f)));
}

// A block of four warps. In a wide one each warp has kRowTiles times 16 rows of its own. In a
// narrow one all warps have the same 16 rows: each multiplies some of the keys and some of the
// values' columns, and all weigh the same scores. Plain attention has neither a cap nor sinks: as
// branches they would take registers from all models. Nor has other attention spans, nor have pages
// without spans centred keys.
template <KvCode kKeyCode, KvCode kValueCode, int kHeadDim, bool kIsWide, bool kIsPlain,
          bool kHasSpans = false, bool kIsCentred = false>
struct AttentionShape {
  static constexpr KvCode kKeys = kKeyCode, kValues = kValueCode;
  static constexpr bool kWide = kIsWide, kPlain = kIsPlain, kSpans = kHasSpans;
  static constexpr bool kCentred = kIsCentred;
  static constexpr int kDim = kHeadDim, kWarps = 4, kThreads = kWarps * 32;
  static constexpr int kRowTiles = kWide ? kWideRows / (16 * kWarps) : kNarrowRows / 16;
  static constexpr int kRows = kWide ? kWideRows : kNarrowRows;
  static constexpr int kTokens = kDim <= 64 ? 64 : 32;  // per tile; part of the arithmetic
  // Centre queries leave less memory for codes of many bits.
  static constexpr bool kTwoStages = kDim <= 64 || (kCentred && CodeBits(kKeys) == 8);
  static constexpr int kStages = kWide && kTwoStages ? 2 : 3;
  static constexpr int kTilesOfSplit = kSplitTokens / kTokens;
  static constexpr int kRow = kDim * 2;
  using Keys = PlaneTile<kKeys, kDim, kTokens, kThreads>;
  using Values = PlaneTile<kValues, kDim, kTokens, kThreads>;
  static constexpr bool kCodes = Keys::kCodes;
  static constexpr int kQueryBytes = kRows * kRow;
  static constexpr int kStageBytes = Keys::kStageBytes + Values::kStageBytes;
  static constexpr int kScoreBytes = kWide ? 0 : kRows * kTokens * 4;  // that warps exchange
  static constexpr int kCodeBytes =
      kStages * kStageBytes + Keys::kConvertedBytes + Values::kConvertedBytes;
  // Tiles of a span in bf16, in the memory of those of codes.
  static constexpr int kRecentStages = 2;
  static constexpr int kRecentStageBytes = 2 * kTokens * kRow;
  static constexpr int kRecentBytes = kSpans ? kRecentStages * kRecentStageBytes : 0;
  static constexpr int kTileBytes = kCodeBytes > kRecentBytes ? kCodeBytes : kRecentBytes;
  static constexpr int kCentreAt = kQueryBytes + kTileBytes;  // of the centre queries
  static constexpr int kCentreBytes = kCentred ? kQueryBytes : 0;
  static constexpr int kSharedBytes = kCentreAt + kCentreBytes + kScoreBytes;
  static_assert(!kCentred || kSharedBytes <= 99 << 10);  // what a block of any GPU may have
  // float4 of a block's scratch for each thread: the sums of its rows, and their maxima and totals.
  static constexpr int kScratchWords = kRowTiles * (kDim / 8 + 1);
};

template <class Shape>
struct AttentionBlock {
  static constexpr int kDim = Shape::kDim, kRow = Shape::kRow, kChunks = kRow / 16;
  static constexpr int kTokens = Shape::kTokens, kRowTiles = Shape::kRowTiles;
  static constexpr int kScoreTiles = kTokens / 8;
  // What a warp computes of a row tile: scores of 8 tokens each, and outputs of 8 elements each.
  static constexpr int kOwnScores = Shape::kWide ? kScoreTiles : kScoreTiles / Shape::kWarps;
  static constexpr int kOutputTiles = Shape::kWide ? kDim / 8 : kDim / 8 / Shape::kWarps;
  static constexpr int kSteps = kRow / 32;  // of the mma over the elements of a row

  const AttentionParams& p;
  AttentionTile tile;
  AttentionSequence sequence;
  const uint32_t* table;
  int kv_head, rows;
  int warp, lane, group, member;
  int first_position, last_position;  // first and last position of the block's rows
  int tile_begin, tile_end;
  TilePages<kTokens> pages;       // of the tile that is fetched next
  int first_score, first_output;  // tiles of this warp

  float output[kRowTiles][kOutputTiles][4];
  float scores[kRowTiles][kScoreTiles][4];
  float max[kRowTiles][2], sum[kRowTiles][2];
  uint32_t own_query[Shape::kWide ? 1 : kSteps][4];  // operands that a narrow block keeps

  PENSTOCK_DEVICE AttentionBlock(const AttentionParams& params, AttentionTile work)
      : p(params), tile(work) {
    sequence = p.sequences[tile.sequence];
    table = p.tables + tile.sequence * p.table_stride;
    kv_head = BlockY();
    rows = sequence.rows * p.group;
    warp = ThreadX() >> 5;
    lane = ThreadX() & 31;
    group = lane >> 2;
    member = lane & 3;
    const int end = tile.first + Shape::kRows < rows ? tile.first + Shape::kRows : rows;
    first_position = PositionAt(tile.first / p.group);
    last_position = PositionAt((end - 1) / p.group);
    const int first_seen = p.window > 0 ? first_position - p.window + 1 : 0;
    tile_begin = first_seen > 0 ? first_seen / kTokens : 0;
    tile_end = last_position / kTokens + 1;
    first_score = Shape::kWide ? 0 : warp * kOwnScores;
    first_output = Shape::kWide ? 0 : warp * kOutputTiles;
    Reset();
  }

  PENSTOCK_DEVICE int LastTile() const { return tile_end - 1; }

  // Keeps the tiles of one split.
  PENSTOCK_DEVICE void TakeSplit(int split) {
    const int begin = split * Shape::kTilesOfSplit, end = begin + Shape::kTilesOfSplit;
    if (tile_begin < begin) tile_begin = begin;
    if (tile_end > end) tile_end = end;
  }

  PENSTOCK_DEVICE void Reset() {
    PENSTOCK_UNROLL
    for (int m = 0; m < kRowTiles; ++m) {
      max[m][0] = max[m][1] = -INFINITY;
      sum[m][0] = sum[m][1] = 0;
      PENSTOCK_UNROLL
      for (int i = 0; i < kOutputTiles; ++i) {
        output[m][i][0] = output[m][i][1] = output[m][i][2] = output[m][i][3] = 0;
      }
    }
  }

  PENSTOCK_DEVICE uint8_t* KeyStage(int stage) const {
    return SharedMemory() + Shape::kQueryBytes + stage * Shape::kStageBytes;
  }
  PENSTOCK_DEVICE uint8_t* ValueStage(int stage) const {
    return KeyStage(stage) + Shape::Keys::kStageBytes;
  }
  // Tiles of codes after their conversion.
  PENSTOCK_DEVICE uint8_t* ConvertedKeys() const { return KeyStage(Shape::kStages); }
  PENSTOCK_DEVICE uint8_t* ConvertedValues() const {
    return ConvertedKeys() + Shape::Keys::kConvertedBytes;
  }

  PENSTOCK_DEVICE void FetchQueries() {
    FetchRows(p.queries, 0);
    if constexpr (Shape::kCentred) FetchRows(p.centre_queries, Shape::kCentreAt);
  }
  // Copies the block's rows of queries.
  PENSTOCK_DEVICE void FetchRows(const Bf16* queries, int to) {
    for (int c = ThreadX(); c < Shape::kRows * kChunks; c += Shape::kThreads) {
      const int r = c / kChunks, chunk = c % kChunks, row = tile.first + r;
      const bool valid = row < rows;
      const int token = valid ? row / p.group : 0, head = valid ? row % p.group : 0;
      const Bf16* q = queries + (sequence.first_row + token) * p.query_stride +
                      (kv_head * p.group + head) * kDim + chunk * 8;
      CopyAsync16(SharedMemory() + to + Swizzled<kRow>(r, chunk), q, valid);
    }
  }

  PENSTOCK_DEVICE KvSource Source() const {
    return {p.kv, table, kv_head, sequence.position + sequence.rows};
  }

  // Starts two groups of asynchronous copies: keys, then values.
  PENSTOCK_DEVICE void Fetch(int n, int stage) {
    const KvSource from = Source();
    const TilePages<kTokens> here = pages;
    pages.Load(from, (n + 1) * kTokens);
    if (n < tile_end) Shape::Keys::Fetch(from, p.kv.keys, here, n * kTokens, KeyStage(stage));
    CommitCopies();
    if (n < tile_end) Shape::Values::Fetch(from, p.kv.values, here, n * kTokens, ValueStage(stage));
    CommitCopies();
  }

  PENSTOCK_DEVICE void LoadQuery(uint32_t (&query)[4], int first_row, int k, int from = 0) const {
    const int row = first_row + RowsThenChunksRow(lane);
    LoadMatrix4(query,
                SharedMemory() + from + Swizzled<kRow>(row, 2 * k + RowsThenChunksChunk(lane)));
  }
  PENSTOCK_DEVICE void KeepQueries() {
    if constexpr (!Shape::kWide) {
      PENSTOCK_UNROLL
      for (int k = 0; k < kSteps; ++k) LoadQuery(own_query[k], 0, k);
    }
  }

  PENSTOCK_DEVICE void ClearScores() {
    PENSTOCK_UNROLL
    for (int m = 0; m < kRowTiles; ++m) {
      PENSTOCK_UNROLL
      for (int j = 0; j < kScoreTiles; ++j) {
        scores[m][j][0] = scores[m][j][1] = scores[m][j][2] = scores[m][j][3] = 0;
      }
    }
  }

  PENSTOCK_DEVICE void MultiplyKeys(const uint8_t* keys) {
    MultiplyKeys(keys, [] {});
  }
  // add() adds to the scores of this warp.
  template <class AddMore>
  PENSTOCK_DEVICE void MultiplyKeys(const uint8_t* keys, const AddMore& add) {
    ClearScores();
    if constexpr (Shape::kWide) {
      MultiplyAllKeys(keys);
      add();
    } else {
      MultiplyOwnKeys(keys);
      add();
      ExchangeScores();
    }
  }

  PENSTOCK_DEVICE void MultiplyAllKeys(const uint8_t* keys) {
    PENSTOCK_UNROLL
    for (int k = 0; k < kSteps; ++k) {
      uint32_t query[kRowTiles][4];
      PENSTOCK_UNROLL
      for (int m = 0; m < kRowTiles; ++m) LoadQuery(query[m], (warp * kRowTiles + m) * 16, k);
      PENSTOCK_UNROLL
      for (int j = 0; j < kScoreTiles; j += 2) {
        uint32_t b[4];
        LoadMatrix4(b, keys + Swizzled<kRow>(j * 8 + ChunksThenRowsRow(lane),
                                             2 * k + ChunksThenRowsChunk(lane)));
        PENSTOCK_UNROLL
        for (int m = 0; m < kRowTiles; ++m) {
          Mma<true>(scores[m][j], query[m], b[0], b[1]);
          Mma<true>(scores[m][j + 1], query[m], b[2], b[3]);
        }
      }
    }
  }

  // The keys of this warp's tokens; one load has 8 tokens and two steps.
  PENSTOCK_DEVICE void MultiplyOwnKeys(const uint8_t* keys) {
    PENSTOCK_UNROLL
    for (int own = 0; own < kOwnScores; ++own) {
      const int row = (first_score + own) * 8 + (lane & 7);
      PENSTOCK_UNROLL
      for (int k = 0; k < kSteps; k += 2) {
        uint32_t b[4];
        LoadMatrix4(b, keys + Swizzled<kRow>(row, 2 * k + (lane >> 3)));
        Mma<true>(scores[0][own], own_query[k], b[0], b[1]);
        Mma<true>(scores[0][own], own_query[k + 1], b[2], b[3]);
      }
    }
  }

  // Gives every warp the scores of all.
  PENSTOCK_DEVICE void ExchangeScores() {
    auto* all =
        reinterpret_cast<FloatWords4*>(SharedMemory() + Shape::kSharedBytes - Shape::kScoreBytes) +
        lane;
    PENSTOCK_UNROLL
    for (int own = 0; own < kOwnScores; ++own) {
      const float(&x)[4] = scores[0][own];
      all[(first_score + own) * 32] = {{x[0], x[1], x[2], x[3]}};
    }
    SyncBlock();  // every warp has written its scores
    PENSTOCK_UNROLL
    for (int j = 0; j < kScoreTiles; ++j) {
      const FloatWords4 x = all[j * 32];
      PENSTOCK_UNROLL
      for (int i = 0; i < 4; ++i) scores[0][j][i] = x.value[i];
    }
  }

  PENSTOCK_DEVICE int RowOf(int m, int r) const {
    return tile.first + (Shape::kWide ? warp * kRowTiles + m : 0) * 16 + group + r * 8;
  }
  PENSTOCK_DEVICE int PositionOf(int m, int r) const {
    const int row = RowOf(m, r);
    return PositionAt((p.positions == nullptr || row < rows ? row : rows - 1) / p.group);
  }
  // The position of one of the sequence's tokens in the step.
  PENSTOCK_DEVICE int PositionAt(int token) const {
    return p.positions == nullptr ? sequence.position + token
                                  : p.positions[sequence.first_row + token];
  }

  // Score s becomes tanh(s / cap), with tanh(x) = 1 - 2 / (1 + e^2x).
  PENSTOCK_DEVICE void Cap() {
    PENSTOCK_UNROLL
    for (int m = 0; m < kRowTiles; ++m) {
      PENSTOCK_UNROLL
      for (int j = 0; j < kScoreTiles; ++j) {
        PENSTOCK_UNROLL
        for (int i = 0; i < 4; ++i) {
          float& x = scores[m][j][i];
          const float grown = Add(1.0f, Exp2(Multiply(x, p.cap_factor)));
          x = Add(1.0f, Multiply(-2.0f, Reciprocal(grown)));
        }
      }
    }
  }

  // Removes the scores of tokens that a row does not see.
  PENSTOCK_DEVICE void Mask(int n) {
    const bool edge = (n + 1) * kTokens - 1 > first_position ||
                      (p.window > 0 && n * kTokens <= last_position - p.window);
    if (!edge) return;
    PENSTOCK_UNROLL
    for (int m = 0; m < kRowTiles; ++m) {
      PENSTOCK_UNROLL
      for (int r = 0; r < 2; ++r) {
        const int position = PositionOf(m, r);
        PENSTOCK_UNROLL
        for (int j = 0; j < kScoreTiles; ++j) {
          PENSTOCK_UNROLL
          for (int e = 0; e < 2; ++e) {
            const int token = n * kTokens + j * 8 + member * 2 + e;
            const bool seen = token <= position && (p.window == 0 || token > position - p.window);
            if (!seen) scores[m][j][2 * r + e] = -INFINITY;
          }
        }
      }
    }
  }

  // Turns scores into softmax weights relative to the running maximum of their row, and rescales
  // the output if the maximum grew.
  PENSTOCK_DEVICE void Weigh(int n) {
    if (!Shape::kPlain && p.cap_factor != 0) Cap();
    Mask(n);
    WeighRows();
  }

  PENSTOCK_DEVICE void WeighRows() {
    PENSTOCK_UNROLL
    for (int m = 0; m < kRowTiles; ++m) {
      PENSTOCK_UNROLL
      for (int r = 0; r < 2; ++r) {
        // A narrow block with eight rows or fewer has nothing in the other half of the mma's rows.
        if (Shape::kWide || tile.first + 8 * r < rows) WeighRow(m, r);
      }
    }
  }

  PENSTOCK_DEVICE void WeighRow(int m, int r) {
    float top = max[m][r];
    PENSTOCK_UNROLL
    for (int j = 0; j < kScoreTiles; ++j) {
      PENSTOCK_UNROLL
      for (int e = 0; e < 2; ++e) {
        scores[m][j][2 * r + e] = Multiply(scores[m][j][2 * r + e], p.scale_log2);
        top = fmaxf(top, scores[m][j][2 * r + e]);
      }
    }
    top = fmaxf(top, ShuffleXor(top, 1));
    top = fmaxf(top, ShuffleXor(top, 2));
    const float shift = top == -INFINITY ? 0.0f : top;
    const float correction = Exp2(max[m][r] - shift);
    max[m][r] = top;
    float total = Multiply(sum[m][r], correction);
    // `correction` 1 in all lanes: multiplying by exactly 1 changes no bit, so it is skipped.
    if (Ballot(correction != 1.0f) != 0) {
      PENSTOCK_UNROLL
      for (int i = 0; i < kOutputTiles; ++i) {
        output[m][i][2 * r] *= correction;
        output[m][i][2 * r + 1] *= correction;
      }
    }
    PENSTOCK_UNROLL
    for (int j = 0; j < kScoreTiles; ++j) {
      PENSTOCK_UNROLL
      for (int e = 0; e < 2; ++e) {
        const float weight = Exp2(Add(scores[m][j][2 * r + e], -shift));
        scores[m][j][2 * r + e] = weight;
        total = Add(total, weight);
      }
    }
    sum[m][r] = total;
  }

  PENSTOCK_DEVICE void MultiplyValues(const uint8_t* values) {
    PENSTOCK_UNROLL
    for (int j = 0; j < kScoreTiles; j += 2) {
      uint32_t weights[kRowTiles][4];
      PENSTOCK_UNROLL
      for (int m = 0; m < kRowTiles; ++m) {
        weights[m][0] = PackBf16(scores[m][j][0], scores[m][j][1]);
        weights[m][1] = PackBf16(scores[m][j][2], scores[m][j][3]);
        weights[m][2] = PackBf16(scores[m][j + 1][0], scores[m][j + 1][1]);
        weights[m][3] = PackBf16(scores[m][j + 1][2], scores[m][j + 1][3]);
      }
      PENSTOCK_UNROLL
      for (int i = 0; i < kOutputTiles; i += 2) {
        uint32_t b[4];
        LoadMatrix4Transposed(
            b, values + Swizzled<kRow>(j * 8 + RowsThenChunksRow(lane),
                                       first_output + i + RowsThenChunksChunk(lane)));
        PENSTOCK_UNROLL
        for (int m = 0; m < kRowTiles; ++m) {
          Mma<true>(output[m][i], weights[m], b[0], b[1]);
          Mma<true>(output[m][i + 1], weights[m], b[2], b[3]);
        }
      }
    }
  }

  // One tile of bf16 rows, which are used where they arrived.
  PENSTOCK_DEVICE void RowTile(int n, int stage) {
    constexpr int kAhead = 2 * (Shape::kStages - 1);
    WaitCopies<kAhead - 1>();
    SyncBlock();  // and all threads are done with the stage that the next copies overwrite
    Fetch(n + Shape::kStages - 1, stage == 0 ? Shape::kStages - 1 : stage - 1);
    MultiplyKeys(KeyStage(stage));
    Weigh(n);
    WaitCopies<kAhead>();
    SyncBlock();
    MultiplyValues(ValueStage(stage));
  }

  // The scores of one tile of codes, which are converted first.
  PENSTOCK_DEVICE void ScoreCodes(int n, int stage) {
    if constexpr (Shape::kCentred) {
      const TileAngles<Shape> angles(*this, n);
      ConvertCodes(n, stage);
      MultiplyKeys(ConvertedKeys(), [&] { AddCentre(*this, angles); });
    } else {
      ConvertCodes(n, stage);
      MultiplyKeys(ConvertedKeys());
    }
  }

  PENSTOCK_DEVICE void ConvertCodes(int n, int stage) {
    constexpr int kAhead = 2 * (Shape::kStages - 1);
    WaitCopies<kAhead - 2>();
    SyncBlock();  // and all threads are done with the last tile
    Fetch(n + Shape::kStages - 1, stage == 0 ? Shape::kStages - 1 : stage - 1);
    const int valid = sequence.position + sequence.rows - n * kTokens;
    Shape::Keys::Convert(KeyStage(stage), valid, ConvertedKeys());
    Shape::Values::Convert(ValueStage(stage), valid, ConvertedValues());
    SyncBlock();
  }

  PENSTOCK_DEVICE void CodeTile(int n, int stage) {
    ScoreCodes(n, stage);
    Weigh(n);
    MultiplyValues(ConvertedValues());
  }

  // Walks the tiles, and calls end_split(tile) at the end of each split.
  template <class EndSplit>
  PENSTOCK_DEVICE void Tiles(const EndSplit& end_split) {
    FetchQueries();
    CommitCopies();
    pages.Load(Source(), tile_begin * kTokens);
    PENSTOCK_UNROLL
    for (int s = 0; s < Shape::kStages - 1; ++s) Fetch(tile_begin + s, s);
    WaitCopies<2 * (Shape::kStages - 1)>();
    SyncBlock();
    KeepQueries();
    int stage = 0;
    for (int n = tile_begin; n < tile_end; ++n) {
      if constexpr (Shape::kCodes) {
        CodeTile(n, stage);
      } else {
        RowTile(n, stage);
      }
      stage = stage + 1 == Shape::kStages ? 0 : stage + 1;
      if ((n + 1) % Shape::kTilesOfSplit == 0 || n + 1 == tile_end) end_split(n);
    }
    WaitCopies<0>();
  }

  // Adds up the four lanes that share a row.
  PENSTOCK_DEVICE void SumLanes() {
    PENSTOCK_UNROLL
    for (int m = 0; m < kRowTiles; ++m) {
      PENSTOCK_UNROLL
      for (int r = 0; r < 2; ++r) {
        sum[m][r] += ShuffleXor(sum[m][r], 1);
        sum[m][r] += ShuffleXor(sum[m][r], 2);
      }
    }
  }

  PENSTOCK_DEVICE void Store() {
    if constexpr (IsLevels(Shape::kValues)) {
      StoreRotated(*this);
    } else {
      StoreRows();
    }
  }

  PENSTOCK_DEVICE void StoreRows() {
    PENSTOCK_UNROLL
    for (int m = 0; m < kRowTiles; ++m) {
      PENSTOCK_UNROLL
      for (int r = 0; r < 2; ++r) {
        const int row = RowOf(m, r);
        if (row >= rows) continue;
        const int head = kv_head * p.group + row % p.group;
        const float factor = OutputFactor<Shape::kPlain>(p, head, max[m][r], sum[m][r]);
        Bf16* out = p.output + (sequence.first_row + row / p.group) * p.output_stride +
                    head * kDim + first_output * 8 + member * 2;
        PENSTOCK_UNROLL
        for (int i = 0; i < kOutputTiles; ++i) {
          *reinterpret_cast<uint32_t*>(out + i * 8) =
              PackBf16(output[m][i][2 * r] * factor, output[m][i][2 * r + 1] * factor);
        }
      }
    }
  }
};

}  // namespace penstock::cuda
