#pragma once

// Prefill attention: FlashAttention-2 (Dao, arXiv 2307.08691) for many queries per sequence over a
// paged KV cache. Rows of an mma are pairs (token, head of the group), so that one tile of K and V
// serves the whole group. Tiles of tokens are counted from position 0 and processed in ascending
// order, so the bits of a row depend on its own position only, not on its prefill chunk. Codes are
// converted to bf16 on their way into shared memory.

#include "kernels/cuda/device/kv_tile.cuh"
#include "kernels/cuda/prefill_params.h"

namespace penstock::cuda {

template <int kDim>
struct PrefillShape {
  static constexpr int kWarps = 4;
  static constexpr int kThreads = kWarps * 32;
  static constexpr int kRowTiles = kPrefillTileRows / (16 * kWarps);  // per warp
  static constexpr int kTokens = kDim <= 64 ? 64 : 32;                // tokens per tile of K and V
  static constexpr int kStages = kDim <= 64 ? 2 : 3;
  static constexpr int kRow = kDim * 2;
  static constexpr int kQueryBytes = kPrefillTileRows * kRow;
  static constexpr int kTileBytes = kTokens * kRow;
  static constexpr int kSharedBytes = kQueryBytes + 2 * kStages * kTileBytes;
};

// Converts elements [first, first + 8) of a row of codes to bf16.
template <KvCode kCode, int kDim>
PENSTOCK_DEVICE Words4 Dequantise8(const std::byte* row, const std::byte* scale_of_row, int first) {
  float scale, minimum = 0;
  if constexpr (kCode == KvCode::kF8) {
    scale = WidenBf16(*reinterpret_cast<const uint16_t*>(scale_of_row));
  } else {
    const uint32_t both = *reinterpret_cast<const uint32_t*>(scale_of_row);
    scale = LowBf16(both);
    minimum = HighBf16(both);
  }
  constexpr bool kNibbles = kCode == KvCode::kI4;
  const bool high = kNibbles && first >= kDim / 2;
  const auto codes = *reinterpret_cast<const Words2*>(row + (high ? first - kDim / 2 : first));
  Words4 out;
  PENSTOCK_UNROLL
  for (int i = 0; i < 4; ++i) {
    const uint32_t pair = codes.word[i / 2] >> (i % 2 * 16) & 0xffffu;
    float x, y;
    if constexpr (kCode == KvCode::kF8) {
      const uint32_t halves = E4m3ToHalves(pair);
      x = LowHalf(halves) * scale;
      y = HighHalf(halves) * scale;
    } else {
      const uint32_t shifted = high ? pair >> 4 : pair;
      const uint32_t mask = kNibbles ? 15u : 255u;
      x = Add(Multiply(static_cast<float>(shifted & mask), scale), minimum);
      y = Add(Multiply(static_cast<float>(shifted >> 8 & mask), scale), minimum);
    }
    out.word[i] = PackBf16(x, y);
  }
  return out;
}

template <KvCode kKeys, KvCode kValues, int kDim>
struct PrefillWarp {
  using Shape = PrefillShape<kDim>;
  static constexpr int kRow = Shape::kRow, kChunks = kRow / 16;
  static constexpr int kTokens = Shape::kTokens, kRowTiles = Shape::kRowTiles;
  static constexpr int kScoreTiles = kTokens / 8, kOutputTiles = kDim / 8;

  const PrefillParams& p;
  PrefillTile tile;
  PrefillSequence sequence;
  const uint32_t* table;
  int kv_head, rows, length;
  int warp, lane, group, member;
  int first_position, last_position;  // first and last position of the block's rows
  int tile_begin, tile_end;

  float output[kRowTiles][kOutputTiles][4];
  float scores[kRowTiles][kScoreTiles][4];
  float max[kRowTiles][2], sum[kRowTiles][2];

  PENSTOCK_DEVICE PrefillWarp(const PrefillParams& params, PrefillTile work)
      : p(params), tile(work) {
    sequence = p.sequences[tile.sequence];
    table = p.tables + tile.sequence * p.table_stride;
    kv_head = BlockY();
    rows = sequence.rows * p.group;
    length = sequence.position + sequence.rows;
    warp = ThreadX() >> 5;
    lane = ThreadX() & 31;
    group = lane >> 2;
    member = lane & 3;
    const int end = tile.first + kPrefillTileRows < rows ? tile.first + kPrefillTileRows : rows;
    first_position = sequence.position + tile.first / p.group;
    last_position = sequence.position + (end - 1) / p.group;
    const int first_seen = p.window > 0 ? first_position - p.window + 1 : 0;
    tile_begin = first_seen > 0 ? first_seen / kTokens : 0;
    tile_end = last_position / kTokens + 1;
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

  PENSTOCK_DEVICE uint8_t* Keys(int stage) const {
    return SharedMemory() + Shape::kQueryBytes + stage * Shape::kTileBytes;
  }
  PENSTOCK_DEVICE uint8_t* Values(int stage) const {
    return SharedMemory() + Shape::kQueryBytes + (Shape::kStages + stage) * Shape::kTileBytes;
  }

  PENSTOCK_DEVICE void FetchQueries() {
    for (int c = ThreadX(); c < kPrefillTileRows * kChunks; c += Shape::kThreads) {
      const int r = c / kChunks, chunk = c % kChunks, row = tile.first + r;
      const bool valid = row < rows;
      const int token = valid ? row / p.group : 0, head = valid ? row % p.group : 0;
      const Bf16* q = p.queries + (sequence.first_row + token) * p.query_stride +
                      (kv_head * p.group + head) * kDim + chunk * 8;
      CopyAsync16(SharedMemory() + Swizzled<kRow>(r, chunk), q, valid);
    }
  }

  // Converts chunk `c` of a tile, in units of 16 bytes of bf16.
  template <KvCode kCode>
  PENSTOCK_DEVICE void FetchChunk(const KvPlane& plane, int first_token, int c, uint8_t* to) {
    const int r = c / kChunks, chunk = c % kChunks;
    const bool valid = first_token + r < length;
    const int token = valid ? first_token + r : 0, slot = SlotOf(p.kv, token);
    const std::byte* page = PageOf(p.kv, table, token);
    const std::byte* row =
        page + plane.offset + kv_head * plane.head_stride + slot * plane.row_bytes;
    uint8_t* target = to + Swizzled<kRow>(r, chunk);
    if constexpr (kCode == KvCode::kBf16) {
      CopyAsync16(target, row + chunk * 16, valid);
    } else {
      const std::byte* scale =
          page + plane.scale_offset + kv_head * plane.scale_head_stride + slot * ScaleBytes(kCode);
      Words4 words{};
      if (valid) words = Dequantise8<kCode, kDim>(row, scale, chunk * 8);
      *reinterpret_cast<Words4*>(target) = words;
    }
  }

  template <KvCode kCode>
  PENSTOCK_DEVICE void FetchPlane(const KvPlane& plane, int first_token, uint8_t* to) {
    constexpr int kRounds = kTokens * kChunks / Shape::kThreads;
    if constexpr (kCode == KvCode::kBf16) {
      PENSTOCK_UNROLL
      for (int i = 0; i < kRounds; ++i) {
        FetchChunk<kCode>(plane, first_token, i * Shape::kThreads + ThreadX(), to);
      }
    } else {
      PENSTOCK_NO_UNROLL  // limits the registers in use
          for (int i = 0; i < kRounds; ++i) {
        FetchChunk<kCode>(plane, first_token, i * Shape::kThreads + ThreadX(), to);
      }
    }
  }

  // Starts two groups of asynchronous copies: keys, then values.
  PENSTOCK_DEVICE void Fetch(int n, int stage) {
    if (n < tile_end) FetchPlane<kKeys>(p.kv.keys, n * kTokens, Keys(stage));
    CommitCopies();
    if (n < tile_end) FetchPlane<kValues>(p.kv.values, n * kTokens, Values(stage));
    CommitCopies();
  }

  PENSTOCK_DEVICE void MultiplyKeys(const uint8_t* keys) {
    PENSTOCK_UNROLL
    for (int m = 0; m < kRowTiles; ++m) {
      PENSTOCK_UNROLL
      for (int j = 0; j < kScoreTiles; ++j) {
        scores[m][j][0] = scores[m][j][1] = scores[m][j][2] = scores[m][j][3] = 0;
      }
    }
    PENSTOCK_UNROLL
    for (int k = 0; k < kDim / 16; ++k) {
      uint32_t query[kRowTiles][4];
      PENSTOCK_UNROLL
      for (int m = 0; m < kRowTiles; ++m) {
        const int row = (warp * kRowTiles + m) * 16 + RowsThenChunksRow(lane);
        LoadMatrix4(query[m],
                    SharedMemory() + Swizzled<kRow>(row, 2 * k + RowsThenChunksChunk(lane)));
      }
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

  PENSTOCK_DEVICE int PositionOf(int m, int r) const {
    const int row = tile.first + (warp * kRowTiles + m) * 16 + group + r * 8;
    return sequence.position + row / p.group;
  }

  // Turns scores into softmax weights relative to the running maximum of their row, and rescales
  // the output if the maximum grew.
  PENSTOCK_DEVICE void Weigh(int n) {
    const bool edge = (n + 1) * kTokens - 1 > first_position ||
                      (p.window > 0 && n * kTokens <= last_position - p.window);
    PENSTOCK_UNROLL
    for (int m = 0; m < kRowTiles; ++m) {
      PENSTOCK_UNROLL
      for (int r = 0; r < 2; ++r) {
        const int position = PositionOf(m, r);
        float top = max[m][r];
        PENSTOCK_UNROLL
        for (int j = 0; j < kScoreTiles; ++j) {
          PENSTOCK_UNROLL
          for (int e = 0; e < 2; ++e) {
            float x = scores[m][j][2 * r + e] * p.scale_log2;
            const int token = n * kTokens + j * 8 + member * 2 + e;
            const bool seen = token <= position && (p.window == 0 || token > position - p.window);
            if (edge && !seen) x = -INFINITY;
            scores[m][j][2 * r + e] = x;
            top = fmaxf(top, x);
          }
        }
        top = fmaxf(top, ShuffleXor(top, 1));
        top = fmaxf(top, ShuffleXor(top, 2));
        const float shift = top == -INFINITY ? 0.0f : top;
        const float correction = Exp2(max[m][r] - shift);
        max[m][r] = top;
        float total = sum[m][r] * correction;
        PENSTOCK_UNROLL
        for (int i = 0; i < kOutputTiles; ++i) {
          output[m][i][2 * r] *= correction;
          output[m][i][2 * r + 1] *= correction;
        }
        PENSTOCK_UNROLL
        for (int j = 0; j < kScoreTiles; ++j) {
          PENSTOCK_UNROLL
          for (int e = 0; e < 2; ++e) {
            const float weight = Exp2(scores[m][j][2 * r + e] - shift);
            scores[m][j][2 * r + e] = weight;
            total += weight;
          }
        }
        sum[m][r] = total;
      }
    }
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
        LoadMatrix4Transposed(b, values + Swizzled<kRow>(j * 8 + RowsThenChunksRow(lane),
                                                         i + RowsThenChunksChunk(lane)));
        PENSTOCK_UNROLL
        for (int m = 0; m < kRowTiles; ++m) {
          Mma<true>(output[m][i], weights[m], b[0], b[1]);
          Mma<true>(output[m][i + 1], weights[m], b[2], b[3]);
        }
      }
    }
  }

  PENSTOCK_DEVICE void Tiles() {
    FetchQueries();  // part of the first group of copies
    PENSTOCK_UNROLL
    for (int s = 0; s < Shape::kStages - 1; ++s) Fetch(tile_begin + s, s);
    int stage = 0;
    for (int n = tile_begin; n < tile_end; ++n) {
      Fetch(n + Shape::kStages - 1, stage == 0 ? Shape::kStages - 1 : stage - 1);
      WaitCopies<2 * (Shape::kStages - 1) + 1>();
      SyncBlock();
      MultiplyKeys(Keys(stage));
      Weigh(n);
      WaitCopies<2 * (Shape::kStages - 1)>();
      SyncBlock();
      MultiplyValues(Values(stage));
      SyncBlock();  // all threads have read the stage; the next Fetch overwrites it
      stage = stage + 1 == Shape::kStages ? 0 : stage + 1;
    }
    WaitCopies<0>();
  }

  PENSTOCK_DEVICE void Store() {
    PENSTOCK_UNROLL
    for (int m = 0; m < kRowTiles; ++m) {
      PENSTOCK_UNROLL
      for (int r = 0; r < 2; ++r) {
        float total = sum[m][r];
        total += ShuffleXor(total, 1);
        total += ShuffleXor(total, 2);
        const int row = tile.first + (warp * kRowTiles + m) * 16 + group + r * 8;
        if (row >= rows) continue;
        const float inverse = 1.0f / total;
        Bf16* out = p.output + (sequence.first_row + row / p.group) * p.output_stride +
                    (kv_head * p.group + row % p.group) * kDim + member * 2;
        PENSTOCK_UNROLL
        for (int i = 0; i < kOutputTiles; ++i) {
          *reinterpret_cast<uint32_t*>(out + i * 8) =
              PackBf16(output[m][i][2 * r] * inverse, output[m][i][2 * r + 1] * inverse);
        }
      }
    }
  }
};

// Grid: tiles x KV heads.
template <KvCode kKeys, KvCode kValues, int kDim>
__global__ void __launch_bounds__(PrefillShape<kDim>::kThreads)
    PrefillAttentionKernel(const __grid_constant__ PrefillParams p) {
  const PrefillTile tile = p.tiles[BlockX()];
  if (tile.sequence < 0) return;  // padding
  PrefillWarp<kKeys, kValues, kDim> warp(p, tile);
  warp.Tiles();
  warp.Store();
}

}  // namespace penstock::cuda
