#pragma once

// Decode attention: FlashAttention's online softmax (Dao et al., arXiv 2205.14135) over split
// sequences (Flash-Decoding: Dao et al., 2023), one query per sequence. Tokens are the 16 rows of
// an mma, and query heads of one KV head its 8 columns (kColumns tiles side by side), so that K is
// read once for the whole group of heads. A warp processes one tile of 16 tokens at a time, every
// kDecodeWarps-th tile of its item, and needs no block barrier before the end.
//
// The scales of codes are never applied to single elements. Scales of K multiply finished scores.
// Scales of V are divided into a power of two, which is added to the exponent of the weight, and a
// factor in [1, 2), so that weights use the range of f16 for any scale. Minima of V are summed
// separately.

#include "kernels/cuda/decode_params.h"
#include "kernels/cuda/device/kv_tile.cuh"

namespace penstock::cuda {

template <KvCode kKeys, KvCode kValues, int kDim, int kColumns, int kStages>
struct DecodeShape {
  static constexpr int kKeyRow = kDim * CodeBits(kKeys) / 8;
  static constexpr int kValueRow = kDim * CodeBits(kValues) / 8;
  static constexpr int kKeyTile = 16 * kKeyRow, kValueTile = 16 * kValueRow;
  static constexpr int kKeyScales = 16 * ScaleBytes(kKeys);
  static constexpr int kValueScales = 16 * ScaleBytes(kValues);
  // Shared memory of one stage of one warp: keys, scales of keys, scales of values, values.
  static constexpr int kStage = kKeyTile + kKeyScales + kValueScales + kValueTile;
  static constexpr int kWarpBytes = kStages * kStage;
  static constexpr int kHeads = 8 * kColumns;
  static constexpr int kMergeBytes = kDecodeWarps * kHeads * (kDim + 2) * 4;
  static constexpr int kSharedBytes =
      kDecodeWarps * kWarpBytes > kMergeBytes ? kDecodeWarps* kWarpBytes : kMergeBytes;
};

template <KvCode kKeys, KvCode kValues, int kDim, int kColumns, int kStages>
struct DecodeWarp {
  using Shape = DecodeShape<kKeys, kValues, kDim, kColumns, kStages>;
  static constexpr int kSteps = kDim / 16;
  static constexpr bool kBf16Keys = kKeys == KvCode::kBf16;
  static constexpr bool kBf16Values = kValues == KvCode::kBf16;

  const DecodeParams& p;
  DecodeItem item;
  int kv_head, first_head, heads;  // this block's query heads are [first_head, first_head + heads)
  int warp, lane, group, member;
  int length, first_token;
  const uint32_t* table;
  uint8_t* memory;

  uint32_t query[kSteps][kColumns][2];  // operand b of the mma
  float query_sum[kColumns][2];         // for the columns of this lane's accumulators
  float scores[kColumns][4];
  float output[kSteps][kColumns][4];  // V^T weights, in tiles of 16 elements
  float max[kColumns][2], sum[kColumns][2], minima[kColumns][2];

  PENSTOCK_DEVICE explicit DecodeWarp(const DecodeParams& params) : p(params) {
    item = p.items[BlockX()];
    kv_head = BlockY();
    first_head = kv_head * p.group + BlockZ() * Shape::kHeads;
    heads = p.group - BlockZ() * Shape::kHeads;
    if (heads > Shape::kHeads) heads = Shape::kHeads;
    warp = ThreadX() >> 5;
    lane = ThreadX() & 31;
    group = lane >> 2;
    member = lane & 3;
    memory = SharedMemory() + warp * Shape::kWarpBytes;
  }

  PENSTOCK_DEVICE void Begin() {
    length = p.lengths[item.sequence];
    first_token = p.window > 0 && length > p.window ? length - p.window : 0;
    table = p.tables + item.sequence * p.table_stride;
    PENSTOCK_UNROLL
    for (int n = 0; n < kColumns; ++n) {
      PENSTOCK_UNROLL
      for (int e = 0; e < 2; ++e) {
        max[n][e] = -INFINITY;
        sum[n][e] = minima[n][e] = 0;
      }
      PENSTOCK_UNROLL
      for (int i = 0; i < kSteps; ++i) {
        output[i][n][0] = output[i][n][1] = output[i][n][2] = output[i][n][3] = 0;
      }
    }
  }

  template <int kRow>
  PENSTOCK_DEVICE void CopyTile(uint8_t* to, const std::byte* from, int valid) {
    constexpr int kChunks = kRow / 16;
    PENSTOCK_UNROLL
    for (int i = 0; i < kChunks / 2; ++i) {
      const int c = i * 32 + lane, row = c / kChunks, chunk = c % kChunks;
      CopyAsync16(to + Swizzled<kRow>(row, chunk), from + row * kRow + chunk * 16, row < valid);
    }
  }
  template <int kBytes>
  PENSTOCK_DEVICE void CopyScales(uint8_t* to, const std::byte* from) {
    if constexpr (kBytes > 0) {
      if (lane < kBytes / 16) CopyAsync16(to + lane * 16, from + lane * 16, true);
    }
  }

  // Starts two groups of asynchronous copies: the data for the scores, then the values.
  PENSTOCK_DEVICE void Fetch(int tile, int stage) {
    if (tile < item.tile_end) {
      const int token = tile * 16, slot = SlotOf(p.kv, token), valid = length - token;
      const std::byte* page = PageOf(p.kv, table, token);
      const KvPlane &k = p.kv.keys, &v = p.kv.values;
      uint8_t* to = memory + stage * Shape::kStage;
      CopyTile<Shape::kKeyRow>(
          to, page + k.offset + kv_head * k.head_stride + slot * Shape::kKeyRow, valid);
      to += Shape::kKeyTile;
      CopyScales<Shape::kKeyScales>(
          to, page + k.scale_offset + kv_head * k.scale_head_stride + slot * ScaleBytes(kKeys));
      to += Shape::kKeyScales;
      CopyScales<Shape::kValueScales>(
          to, page + v.scale_offset + kv_head * v.scale_head_stride + slot * ScaleBytes(kValues));
      CommitCopies();
      to += Shape::kValueScales;
      CopyTile<Shape::kValueRow>(
          to, page + v.offset + kv_head * v.head_stride + slot * Shape::kValueRow, valid);
      CommitCopies();
    } else {
      CommitCopies();
      CommitCopies();
    }
  }

  PENSTOCK_DEVICE void LoadQuery() {
    PENSTOCK_UNROLL
    for (int n = 0; n < kColumns; ++n) {
      const int head = n * 8 + group;
      const Bf16* q = p.queries + item.sequence * p.query_stride + (first_head + head) * kDim;
      float total = 0;
      PENSTOCK_UNROLL
      for (int step = 0; step < kSteps; ++step) {
        PENSTOCK_UNROLL
        for (int half = 0; half < 2; ++half) {
          int first, second;
          KeyElements<kKeys, kDim>(step, half, member, first, second);
          uint32_t a = 0, b = 0;
          if (head < heads) a = q[first].bits, b = q[second].bits;
          if constexpr (kBf16Keys) {
            query[step][n][half] = a | b << 16;
          } else {
            query[step][n][half] = PackHalf(WidenBf16(a), WidenBf16(b));
            total += WidenBf16(a) + WidenBf16(b);
          }
        }
      }
      if constexpr (IsAffine(kKeys)) {
        total += ShuffleXor(total, 1);
        total += ShuffleXor(total, 2);
        // Accumulators belong to other columns than operands: 2 * member and the next one.
        query_sum[n][0] = Shuffle(total, member * 8);
        query_sum[n][1] = Shuffle(total, member * 8 + 4);
      }
    }
  }

  PENSTOCK_DEVICE void MultiplyKeys(const uint8_t* keys) {
    PENSTOCK_UNROLL
    for (int n = 0; n < kColumns; ++n) {
      scores[n][0] = scores[n][1] = scores[n][2] = scores[n][3] = 0;
    }
    constexpr int kRow = Shape::kKeyRow;
    const int row = RowsThenChunksRow(lane), chunk = RowsThenChunksChunk(lane);
    PENSTOCK_UNROLL
    for (int c = 0; c < kRow / 16; c += 2) {
      uint32_t r[4];
      LoadMatrix4(r, keys + Swizzled<kRow>(row, c + chunk));
      if constexpr (kBf16Keys) {
        PENSTOCK_UNROLL
        for (int n = 0; n < kColumns; ++n) {
          Mma<true>(scores[n], r, query[c / 2][n][0], query[c / 2][n][1]);
        }
      } else {
        MultiplyKeyCodes(r, c);
      }
    }
  }

  // Each register has the codes of one chunk, for one or two steps of the mma.
  PENSTOCK_DEVICE void MultiplyKeyCodes(const uint32_t (&r)[4], int c) {
    constexpr int kStepsPerChunk = kKeys == KvCode::kI4 ? 2 : 1;
    PENSTOCK_UNROLL
    for (int i = 0; i < 2; ++i) {
      PENSTOCK_UNROLL
      for (int s = 0; s < kStepsPerChunk; ++s) {
        const uint32_t a[4] = {
            UnpackKeys<kKeys>(r[2 * i], 2 * s), UnpackKeys<kKeys>(r[2 * i + 1], 2 * s),
            UnpackKeys<kKeys>(r[2 * i], 2 * s + 1), UnpackKeys<kKeys>(r[2 * i + 1], 2 * s + 1)};
        const int step = (c + i) * kStepsPerChunk + s;
        PENSTOCK_UNROLL
        for (int n = 0; n < kColumns; ++n) {
          Mma<false>(scores[n], a, query[step][n][0], query[step][n][1]);
        }
      }
    }
  }

  // The values that convert codes of V, for the tile's tokens `group` and `group + 8`.
  struct ValueScale {
    float exponent, power, inverse_power, factor, minimum;
  };
  PENSTOCK_DEVICE ValueScale ScaleOf(const uint8_t* scales, int row, bool valid) {
    ValueScale s{0, 1, 1, 1, 0};
    if constexpr (kBf16Values) return s;
    uint32_t scale, minimum = 0;
    if constexpr (kValues == KvCode::kF8) {
      scale = reinterpret_cast<const uint16_t*>(scales)[row];
    } else {
      const uint32_t both = reinterpret_cast<const uint32_t*>(scales)[row];
      scale = both & 0xffffu;
      minimum = both >> 16;
    }
    // Slots after the last token hold stale data with arbitrary scales.
    if (!valid) scale = 0x3f80, minimum = 0;
    int exponent = static_cast<int>(scale >> 7 & 0xff) - 127;
    exponent = exponent < -60 ? -60 : exponent > 100 ? 100 : exponent;
    s.exponent = static_cast<float>(exponent);
    s.inverse_power = BitsToFloat(static_cast<uint32_t>(127 - exponent) << 23);
    s.factor = WidenBf16(scale) * s.inverse_power;
    s.minimum = WidenBf16(minimum);
    return s;
  }

  // Turns scores into softmax weights relative to the running maximum, and rescales sum and output
  // if the maximum grew.
  PENSTOCK_DEVICE void Weigh(int tile, const uint8_t* key_scales, const uint8_t* value_scales,
                             ValueScale (&value)[2]) {
    float scale[2] = {1, 1}, bias[2] = {0, 0};
    bool valid[2];
    PENSTOCK_UNROLL
    for (int r = 0; r < 2; ++r) {
      const int row = group + 8 * r, token = tile * 16 + row;
      valid[r] = token < length && token >= first_token;
      if constexpr (kKeys == KvCode::kF8) {
        scale[r] = WidenBf16(reinterpret_cast<const uint16_t*>(key_scales)[row]);
      } else if constexpr (IsAffine(kKeys)) {
        const uint32_t both = reinterpret_cast<const uint32_t*>(key_scales)[row];
        scale[r] = LowBf16(both);
        bias[r] = HighBf16(both) - 1024.0f * scale[r];  // unpacked codes are 1024 too large
      }
      value[r] = ScaleOf(value_scales, row, valid[r]);
    }
    PENSTOCK_UNROLL
    for (int n = 0; n < kColumns; ++n) {
      PENSTOCK_UNROLL
      for (int e = 0; e < 2; ++e) {
        float top = max[n][e];
        PENSTOCK_UNROLL
        for (int r = 0; r < 2; ++r) {
          float x = scores[n][2 * r + e];
          if constexpr (!kBf16Keys) x *= scale[r];
          if constexpr (IsAffine(kKeys)) x += bias[r] * query_sum[n][e];
          x = valid[r] ? x * p.scale_log2 + value[r].exponent : -INFINITY;
          scores[n][2 * r + e] = x;
          top = fmaxf(top, x);
        }
        top = fmaxf(top, ShuffleXor(top, 4));
        top = fmaxf(top, ShuffleXor(top, 8));
        top = fmaxf(top, ShuffleXor(top, 16));
        const float shift = top == -INFINITY ? 0.0f : top;
        const float correction = Exp2(max[n][e] - shift);
        max[n][e] = top;
        Correct(n, e, correction);
        PENSTOCK_UNROLL
        for (int r = 0; r < 2; ++r) {
          const float weight = Exp2(scores[n][2 * r + e] - shift);
          scores[n][2 * r + e] = weight;
          sum[n][e] += weight * value[r].inverse_power;
        }
      }
    }
  }

  PENSTOCK_DEVICE void Correct(int n, int e, float correction) {
    sum[n][e] *= correction;
    minima[n][e] *= correction;
    // `correction` 1 in all lanes: multiplying by exactly 1 changes no bit, so it is skipped.
    if (Ballot(correction != 1.0f) == 0) return;
    PENSTOCK_UNROLL
    for (int i = 0; i < kSteps; ++i) {
      output[i][n][e] *= correction;
      output[i][n][2 + e] *= correction;
    }
  }

  // Turns the weights, which are accumulators of tokens x heads, into operand b (transposed).
  PENSTOCK_DEVICE void TransposeWeights(const ValueScale (&value)[2],
                                        uint32_t (&weights)[kColumns][2]) {
    PENSTOCK_UNROLL
    for (int n = 0; n < kColumns; ++n) {
      PENSTOCK_UNROLL
      for (int r = 0; r < 2; ++r) {
        const float x = scores[n][2 * r], y = scores[n][2 * r + 1];
        uint32_t pair;
        if constexpr (kBf16Values) {
          pair = PackBf16(x, y);
        } else {
          pair = PackHalf(x * value[r].factor, y * value[r].factor);
        }
        if constexpr (IsAffine(kValues)) {
          // The bias of unpacked codes is multiplied by the rounded weights, so it is subtracted
          // with them.
          const float min = value[r].minimum * value[r].inverse_power;
          minima[n][0] += x * min - 1024.0f * LowHalf(pair);
          minima[n][1] += y * min - 1024.0f * HighHalf(pair);
        }
        weights[n][r] = TransposeMatrix(pair);
      }
    }
  }

  PENSTOCK_DEVICE void MultiplyValues(const uint8_t* values,
                                      const uint32_t (&weights)[kColumns][2]) {
    constexpr int kRow = Shape::kValueRow;
    if constexpr (kBf16Values) {
      const int row = ChunksThenRowsRow(lane), chunk = ChunksThenRowsChunk(lane);
      PENSTOCK_UNROLL
      for (int i = 0; i < kSteps; ++i) {
        uint32_t a[4];
        LoadMatrix4Transposed(a, values + Swizzled<kRow>(row, 2 * i + chunk));
        PENSTOCK_UNROLL
        for (int n = 0; n < kColumns; ++n) {
          Mma<true>(output[i][n], a, weights[n][0], weights[n][1]);
        }
      }
    } else {
      const int row = RowsThenChunksRow(lane), chunk = RowsThenChunksChunk(lane);
      PENSTOCK_UNROLL
      for (int c = 0; c < kRow / 16; c += 2) {
        uint32_t r[4];
        LoadMatrix4Transposed(r, values + Swizzled<kRow>(row, c + chunk));
        MultiplyValueCodes(r, c, weights);
      }
    }
  }

  PENSTOCK_DEVICE void MultiplyValueCodes(const uint32_t (&r)[4], int c,
                                          const uint32_t (&weights)[kColumns][2]) {
    constexpr int kTilesPerChunk = kValues == KvCode::kI4 ? 2 : 1;
    PENSTOCK_UNROLL
    for (int i = 0; i < 2; ++i) {
      PENSTOCK_UNROLL
      for (int s = 0; s < kTilesPerChunk; ++s) {
        const uint32_t a[4] = {UnpackValues<kValues>(r[2 * i], 2 * s),
                               UnpackValues<kValues>(r[2 * i], 2 * s + 1),
                               UnpackValues<kValues>(r[2 * i + 1], 2 * s),
                               UnpackValues<kValues>(r[2 * i + 1], 2 * s + 1)};
        PENSTOCK_UNROLL
        for (int n = 0; n < kColumns; ++n) {
          Mma<false>(output[(c + i) * kTilesPerChunk + s][n], a, weights[n][0], weights[n][1]);
        }
      }
    }
  }

  PENSTOCK_DEVICE void Tiles() {
    PENSTOCK_UNROLL
    for (int s = 0; s < kStages - 1; ++s) Fetch(item.tile_begin + warp + s * kDecodeWarps, s);
    LoadQuery();
    int stage = 0;
    for (int tile = item.tile_begin + warp; tile < item.tile_end; tile += kDecodeWarps) {
      const int ahead = stage == 0 ? kStages - 1 : stage - 1;
      Fetch(tile + (kStages - 1) * kDecodeWarps, ahead);
      const uint8_t* keys = memory + stage * Shape::kStage;
      const uint8_t* key_scales = keys + Shape::kKeyTile;
      const uint8_t* value_scales = key_scales + Shape::kKeyScales;
      WaitCopies<2 * (kStages - 1) + 1>();
      SyncWarp();  // the other lanes' copies are complete too
      MultiplyKeys(keys);
      ValueScale value[2];
      Weigh(tile, key_scales, value_scales, value);
      uint32_t weights[kColumns][2];
      TransposeWeights(value, weights);
      WaitCopies<2 * (kStages - 1)>();
      SyncWarp();
      MultiplyValues(value_scales + Shape::kValueScales, weights);
      SyncWarp();  // all lanes have read the stage; the next Fetch overwrites it
      stage = stage + 1 == kStages ? 0 : stage + 1;
    }
    WaitCopies<0>();
  }

  // Writes this warp's part to shared memory: [warp][head][kDim], then [warp][head]{max, sum}.
  PENSTOCK_DEVICE void Publish() {
    auto* outputs = reinterpret_cast<float*>(SharedMemory());
    float* stats = outputs + kDecodeWarps * Shape::kHeads * kDim;
    PENSTOCK_UNROLL
    for (int n = 0; n < kColumns; ++n) {
      PENSTOCK_UNROLL
      for (int e = 0; e < 2; ++e) {
        PENSTOCK_UNROLL
        for (int mask = 4; mask <= 16; mask *= 2) {
          sum[n][e] += ShuffleXor(sum[n][e], mask);
          if constexpr (IsAffine(kValues)) minima[n][e] += ShuffleXor(minima[n][e], mask);
        }
        const int slot = warp * Shape::kHeads + n * 8 + member * 2 + e;
        if (group == 0) {
          stats[slot * 2] = max[n][e];
          stats[slot * 2 + 1] = sum[n][e];
        }
        PENSTOCK_UNROLL
        for (int i = 0; i < kSteps; ++i) {
          PENSTOCK_UNROLL
          for (int r = 0; r < 2; ++r) {
            outputs[slot * kDim + ValueElement<kValues, kDim>(i, r, group)] =
                output[i][n][2 * r + e] + minima[n][e];
          }
        }
      }
    }
  }

  PENSTOCK_DEVICE void Merge() {
    const auto* outputs = reinterpret_cast<const float*>(SharedMemory());
    const float* stats = outputs + kDecodeWarps * Shape::kHeads * kDim;
    for (int x = ThreadX(); x < heads * kDim; x += kDecodeWarps * 32) {
      const int head = x / kDim, element = x % kDim;
      float top = -INFINITY;
      PENSTOCK_UNROLL
      for (int w = 0; w < kDecodeWarps; ++w) {
        top = fmaxf(top, stats[(w * Shape::kHeads + head) * 2]);
      }
      const float shift = top == -INFINITY ? 0.0f : top;
      float total = 0, value = 0;
      PENSTOCK_UNROLL
      for (int w = 0; w < kDecodeWarps; ++w) {
        const int slot = w * Shape::kHeads + head;
        const float factor = Exp2(stats[slot * 2] - shift);
        total += factor * stats[slot * 2 + 1];
        value += factor * outputs[slot * kDim + element];
      }
      Store(first_head + head, element, top, total, value);
    }
  }

  PENSTOCK_DEVICE void Store(int head, int element, float top, float total, float value) {
    if (p.max_splits == 1) {
      p.output[item.sequence * p.output_stride + head * kDim + element].bits =
          RoundBf16(value / total);
      return;
    }
    const int64_t partial =
        (static_cast<int64_t>(item.sequence) * p.heads + head) * p.max_splits + item.split;
    p.partial_outputs[partial * kDim + element] = value;
    if (element == 0) {
      p.partial_stats[partial * 2] = top;
      p.partial_stats[partial * 2 + 1] = total;
    }
  }
};

// Grid: items x KV heads x groups of 8 * kColumns query heads.
template <KvCode kKeys, KvCode kValues, int kDim, int kColumns, int kStages>
__global__ void __launch_bounds__(kDecodeWarps * 32)
    DecodeAttentionKernel(const __grid_constant__ DecodeParams p) {
  if (p.items[BlockX()].sequence < 0) return;  // padding
  DecodeWarp<kKeys, kValues, kDim, kColumns, kStages> warp(p);
  warp.Begin();
  warp.Tiles();
  SyncBlock();  // the stages of all warps are reused as the memory for merging
  warp.Publish();
  SyncBlock();
  warp.Merge();
}

// Combines the splits of a sequence, in ascending order for any batch. Grid: heads x sequences;
// kDim threads.
template <int kDim>
__global__ void __launch_bounds__(kDim) CombineKernel(const __grid_constant__ DecodeParams p) {
  const int head = BlockX(), sequence = BlockY(), element = ThreadX();
  const int splits = p.split_counts[sequence];
  const int64_t first = (static_cast<int64_t>(sequence) * p.heads + head) * p.max_splits;
  float top = -INFINITY;
  for (int s = 0; s < splits; ++s) top = fmaxf(top, p.partial_stats[(first + s) * 2]);
  const float shift = top == -INFINITY ? 0.0f : top;
  float total = 0, value = 0;
  for (int s = 0; s < splits; ++s) {
    const float factor = Exp2(p.partial_stats[(first + s) * 2] - shift);
    total += factor * p.partial_stats[(first + s) * 2 + 1];
    value += factor * p.partial_outputs[(first + s) * kDim + element];
  }
  if (splits > 0) {
    p.output[sequence * p.output_stride + head * kDim + element].bits = RoundBf16(value / total);
  }
}

}  // namespace penstock::cuda
