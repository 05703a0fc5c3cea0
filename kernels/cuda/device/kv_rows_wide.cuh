#pragma once

// The row codecs for rows of 64 or 128 elements without exact elements, in aligned memory: a lane
// handles eight neighbouring elements of a row, and a warp four loads of 16 bytes a lane at once.

#include "kernels/cuda/device/block_ops.cuh"
#include "kernels/cuda/device/kv_rows.cuh"
#include "kernels/cuda/device/quantise.cuh"

namespace penstock::cuda {

constexpr uint32_t kWideLoads = 4;

struct WideRowsParams {
  KvRowsParams rows;
  uint32_t units = 0;        // groups of rows that a warp handles at once, in a plane of a head
  uint32_t total_units = 0;  // in all layers
};

// True if WideRowsKernel can handle the rows.
inline bool IsWide(const KvRowsParams& p) {
  const auto aligned = [](uint64_t bytes) { return bytes % 16 == 0; };
  return (p.dims == 64 || p.dims == 128) && p.exact == 0 && !p.behind_streams &&
         aligned(reinterpret_cast<uintptr_t>(p.values)) &&
         aligned(reinterpret_cast<uintptr_t>(p.payload)) && aligned(p.scales_offset) &&
         aligned(p.layer_bytes) && uint64_t{p.layers} * p.heads * p.planes * p.slots < 1u << 31;
}

// The rows that a warp handles at once; kLanes lanes have a row.
template <int kLanes>
struct WideUnit {
  static constexpr uint32_t kDims = kLanes * 8, kRowsOfLoad = 32 / kLanes;
  static constexpr uint32_t kRows = kWideLoads * kRowsOfLoad;

  uint32_t layer, rows;  // number of rows of this unit
  KvRowCode code;
  Bf16* values;  // the first row
  std::byte *codes, *scales;

  PENSTOCK_DEVICE WideUnit(const WideRowsParams& p, uint32_t index) {
    const KvRowsParams& r = p.rows;
    const uint32_t piece = index / p.units, first = index % p.units * kRows;
    const uint32_t of_piece = r.slots * r.groups;
    const uint32_t plane = r.planes == 2 ? piece % 2 : 0, head_of_all = piece / r.planes;
    const uint32_t head = head_of_all % r.heads;
    layer = head_of_all / r.heads;
    rows = of_piece - first;
    code = plane == 0 ? r.codes[0] : r.codes[1];
    values = r.values + (uint64_t{piece} * of_piece + first) * kDims;
    const uint32_t first_bytes = RowBytes(r.codes[0]);
    const uint32_t pair_bytes = first_bytes + (r.planes == 2 ? RowBytes(r.codes[1]) : 0);
    std::byte* start = r.payload + uint64_t{layer} * r.layer_bytes;
    codes = start + of_piece * (head * pair_bytes + (plane == 0 ? 0 : first_bytes)) +
            first * RowBytes(code);
    scales = start + r.scales_offset +
             ((head * r.planes + plane) * of_piece + first) * (HasMinimum() ? 4 : 2);
  }
  static PENSTOCK_DEVICE uint32_t RowBytes(KvRowCode code) { return kDims * RowCodeBits(code) / 8; }
  PENSTOCK_DEVICE bool HasMinimum() const { return code >= KvRowCode::kI8; }

  // The row of this lane in a load.
  static PENSTOCK_DEVICE uint32_t RowOf(uint32_t load) {
    return load * kRowsOfLoad + static_cast<uint32_t>(ThreadX()) % 32 / kLanes;
  }
  PENSTOCK_DEVICE bool Has(uint32_t load) const { return RowOf(load) < rows; }
  static PENSTOCK_DEVICE uint32_t Member() { return static_cast<uint32_t>(ThreadX()) % kLanes; }
  // True for the lanes with the second half of a row's elements, in whose codes of 4 bits they are
  // the high nibbles.
  static PENSTOCK_DEVICE bool IsUpper() { return Member() >= kLanes / 2; }

  PENSTOCK_DEVICE Words4* ValuesOf(uint32_t load) const {
    return reinterpret_cast<Words4*>(values + RowOf(load) * kDims + Member() * 8);
  }
  PENSTOCK_DEVICE std::byte* BytesOf(uint32_t load) const {
    return codes + RowOf(load) * kDims + Member() * 8;
  }
  PENSTOCK_DEVICE std::byte* NibblesOf(uint32_t load) const {
    return codes + RowOf(load) * (kDims / 2) + Member() % (kLanes / 2) * 8;
  }
};

// The largest (or smallest) of the values in the lanes that have a row.
template <int kLanes, class T, class Most>
PENSTOCK_DEVICE void ReduceRows(T (&v)[kWideLoads], const Most& most) {
  PENSTOCK_UNROLL
  for (int mask = kLanes / 2; mask > 0; mask /= 2) {
    PENSTOCK_UNROLL
    for (uint32_t i = 0; i < kWideLoads; ++i) v[i] = most(v[i], ShuffleXor(v[i], mask));
  }
}

// Byte 0 of each of four words.
PENSTOCK_DEVICE uint32_t LowBytes(uint32_t a, uint32_t b, uint32_t c, uint32_t d) {
  return Permute(Permute(a, b, 0x0040), Permute(c, d, 0x0040), 0x5410);
}

// The Hadamard transform of rows, unnormalised, stages in ascending order.
template <int kLanes>
PENSTOCK_DEVICE void RotateWide(float (&x)[8]) {
  PENSTOCK_UNROLL
  for (int half = 1; half < 8; half *= 2) {
    PENSTOCK_UNROLL
    for (int k = 0; k < 8; ++k) {
      if ((k & half) != 0) continue;
      const float a = x[k], b = x[k + half];
      x[k] = Add(a, b);
      x[k + half] = Add(a, -b);
    }
  }
  PENSTOCK_UNROLL
  for (int mask = 1; mask < kLanes; mask *= 2) {
    const uint32_t negate = (ThreadX() & mask) != 0 ? 0x80000000u : 0u;
    PENSTOCK_UNROLL
    for (int k = 0; k < 8; ++k) {
      const float other = ShuffleXor(x[k], mask);
      x[k] = Add(other, BitsToFloat(FloatToBits(x[k]) ^ negate));
    }
  }
}

template <int kLanes>
struct WideEncoder {
  WideUnit<kLanes> unit;
  Words4 words[kWideLoads];

  PENSTOCK_DEVICE WideEncoder(const WideRowsParams& p, uint32_t index) : unit(p, index) {
    PENSTOCK_UNROLL
    for (uint32_t i = 0; i < kWideLoads; ++i) {
      words[i] = unit.Has(i) ? *unit.ValuesOf(i) : Words4{};
    }
  }

  // True if this lane has a value whose exponent is not below kQuantisedExponentMax, that is, whose
  // upper four bits are all set.
  PENSTOCK_DEVICE bool IsUnfit() const {
    static_assert(kQuantisedExponentMax == 0xf0);
    uint32_t carries = 0;
    PENSTOCK_UNROLL
    for (uint32_t i = 0; i < kWideLoads; ++i) {
      PENSTOCK_UNROLL
      for (int w = 0; w < 4; ++w) carries |= (words[i].word[w] & 0x78007800u) + 0x08000800u;
    }
    return (carries & 0x80008000u) != 0;
  }

  PENSTOCK_DEVICE void StoreBytes(uint32_t load, const Words2& codes) const {
    if (unit.Has(load)) Store(unit.BytesOf(load), codes);
  }
  // Combines the low nibbles of the lower lanes with the high ones of the upper lanes.
  PENSTOCK_DEVICE void StoreNibbles(uint32_t load, const Words2& codes) const {
    const bool upper = unit.IsUpper();
    const uint32_t other = ShuffleXor(upper ? codes.word[0] : codes.word[1], kLanes / 2);
    if (!unit.Has(load)) return;
    reinterpret_cast<uint32_t*>(unit.NibblesOf(load))[upper ? 1 : 0] =
        upper ? other | codes.word[1] << 4 : codes.word[0] | other << 4;
  }

  template <F8Format kFormat>
  PENSTOCK_DEVICE void F8() const {
    uint32_t top[kWideLoads];
    PENSTOCK_UNROLL
    for (uint32_t i = 0; i < kWideLoads; ++i) {
      const auto& w = words[i].word;
      const uint32_t most = MaxBf16(MaxBf16(w[0] & 0x7fff7fffu, w[1] & 0x7fff7fffu),
                                    MaxBf16(w[2] & 0x7fff7fffu, w[3] & 0x7fff7fffu));
      top[i] = MaxBf16(most, most >> 16);
    }
    ReduceRows<kLanes>(top, [](uint32_t a, uint32_t b) { return MaxBf16(a, b); });
    PENSTOCK_UNROLL
    for (uint32_t i = 0; i < kWideLoads; ++i) {
      const F8Scale<kFormat> f8(top[i] & 0xffffu);
      Words2 codes;
      PENSTOCK_UNROLL
      for (int h = 0; h < 2; ++h) {
        const uint32_t first = words[i].word[2 * h], second = words[i].word[2 * h + 1];
        codes.word[h] = f8.Pair(LowBf16(first), HighBf16(first)) |
                        f8.Pair(LowBf16(second), HighBf16(second)) << 16;
      }
      StoreBytes(i, codes);
      if (unit.Member() == 0 && unit.Has(i)) {
        reinterpret_cast<uint16_t*>(unit.scales)[unit.RowOf(i)] =
            static_cast<uint16_t>(f8.scale >> 16);
      }
    }
  }

  // Sets the lowest and the highest value of each row.
  PENSTOCK_DEVICE void FindRanges(float (&low)[kWideLoads], float (&high)[kWideLoads]) const {
    constexpr uint32_t kNegateHigh = 0x80000000u;
    uint32_t range[kWideLoads];  // the minimum, and the negated maximum above it
    PENSTOCK_UNROLL
    for (uint32_t i = 0; i < kWideLoads; ++i) {
      const auto& w = words[i].word;
      const uint32_t least = MinBf16(MinBf16(w[0], w[1]), MinBf16(w[2], w[3]));
      const uint32_t most = MaxBf16(MaxBf16(w[0], w[1]), MaxBf16(w[2], w[3]));
      range[i] = MinBf16(Permute(least, most, 0x5410) ^ kNegateHigh,
                         Permute(least, most, 0x7632) ^ kNegateHigh);
    }
    ReduceRows<kLanes>(range, [](uint32_t a, uint32_t b) { return MinBf16(a, b); });
    PENSTOCK_UNROLL
    for (uint32_t i = 0; i < kWideLoads; ++i) {
      low[i] = LowBf16(range[i]);
      high[i] = HighBf16(range[i] ^ kNegateHigh);
    }
  }

  template <int kLevels>
  PENSTOCK_DEVICE void StoreAffine(uint32_t load, const AffineScale<kLevels>& affine,
                                   const float (&x)[8]) const {
    uint32_t code[8];
    PENSTOCK_UNROLL
    for (int i = 0; i < 8; ++i) code[i] = affine.RoundedLevel(x[i]);
    const Words2 codes = {{LowBytes(code[0], code[1], code[2], code[3]),
                           LowBytes(code[4], code[5], code[6], code[7])}};
    if constexpr (kLevels == 255) StoreBytes(load, codes);
    if constexpr (kLevels == 15) StoreNibbles(load, codes);
    if (unit.Member() == 0 && unit.Has(load)) {
      reinterpret_cast<uint32_t*>(unit.scales)[unit.RowOf(load)] =
          affine.scale | affine.minimum_bits << 16;
    }
  }
  PENSTOCK_DEVICE void Widen(uint32_t load, float (&x)[8]) const {
    PENSTOCK_UNROLL
    for (int i = 0; i < 4; ++i) {
      x[2 * i] = LowBf16(words[load].word[i]);
      x[2 * i + 1] = HighBf16(words[load].word[i]);
    }
  }

  template <int kLevels>
  PENSTOCK_DEVICE void Affine() const {
    float low[kWideLoads], high[kWideLoads];
    FindRanges(low, high);
    PENSTOCK_UNROLL
    for (uint32_t i = 0; i < kWideLoads; ++i) {
      float x[8];
      Widen(i, x);
      StoreAffine(i, AffineScale<kLevels>(low[i], high[i]), x);
    }
  }

  PENSTOCK_DEVICE void Rotated() const {
    PENSTOCK_UNROLL
    for (uint32_t i = 0; i < kWideLoads; ++i) {
      float x[8];
      Widen(i, x);
      RotateWide<kLanes>(x);
      PENSTOCK_UNROLL
      for (int k = 0; k < 8; ++k) x[k] = Multiply(x[k], HadamardScale(kLanes * 8));
      float low = x[0], high = x[0];
      PENSTOCK_UNROLL
      for (int k = 1; k < 8; ++k) low = fminf(low, x[k]), high = fmaxf(high, x[k]);
      PENSTOCK_UNROLL
      for (int mask = kLanes / 2; mask > 0; mask /= 2) {
        low = fminf(low, ShuffleXor(low, mask));
        high = fmaxf(high, ShuffleXor(high, mask));
      }
      StoreAffine(i, AffineScale<15>(low, high), x);
    }
  }

  PENSTOCK_DEVICE void Code() const {
    if (unit.code == KvRowCode::kF8E4m3) return F8<F8Format::kE4m3>();
    if (unit.code == KvRowCode::kF8E5m2) return F8<F8Format::kE5m2>();
    if (unit.code == KvRowCode::kI8) return Affine<255>();
    if (unit.code == KvRowCode::kI4) return Affine<15>();
    Rotated();
  }
};

// Encodes rows. Grid: units / kRowsWarps.
template <int kLanes>
__global__ void __launch_bounds__(kRowsWarps * 32)
    EncodeWideRowsKernel(const __grid_constant__ WideRowsParams p) {
  const uint32_t index = BlockX() * kRowsWarps + ThreadX() / 32;
  if (index >= p.total_units) return;
  const WideEncoder<kLanes> encoder(p, index);
  if (Ballot(encoder.IsUnfit()) != 0 && ThreadX() % 32 == 0) {
    AtomicMin(&p.rows.result->fault, PackKvFault(KvFault::kValues, encoder.unit.layer));
  }
  encoder.Code();
}

template <int kLanes>
struct WideDecoder {
  WideUnit<kLanes> unit;

  PENSTOCK_DEVICE void StoreValues(uint32_t load, const float (&x)[8]) const {
    if (!unit.Has(load)) return;
    Store(unit.ValuesOf(load), Words4{{PackBf16(x[0], x[1]), PackBf16(x[2], x[3]),
                                       PackBf16(x[4], x[5]), PackBf16(x[6], x[7])}});
  }

  template <F8Format kFormat>
  PENSTOCK_DEVICE void F8() const {
    Words2 codes[kWideLoads];
    uint32_t scale[kWideLoads];
    PENSTOCK_UNROLL
    for (uint32_t i = 0; i < kWideLoads; ++i) {
      if (!unit.Has(i)) continue;
      codes[i] = *reinterpret_cast<const Words2*>(unit.BytesOf(i));
      scale[i] = reinterpret_cast<const uint16_t*>(unit.scales)[unit.RowOf(i)];
    }
    PENSTOCK_UNROLL
    for (uint32_t i = 0; i < kWideLoads; ++i) {
      if (!unit.Has(i)) continue;
      float x[8];
      PENSTOCK_UNROLL
      for (int k = 0; k < 8; ++k) {
        x[k] = F8Value<kFormat>(codes[i].word[k / 4] << (24 - k % 4 * 8), WidenBf16(scale[i]));
      }
      StoreValues(i, x);
    }
  }

  // Loads the codes of eight elements of each row as bytes, and the rows' scales and minima.
  template <int kLevels>
  PENSTOCK_DEVICE void Load(Words2 (&codes)[kWideLoads], uint32_t (&scales)[kWideLoads]) const {
    PENSTOCK_UNROLL
    for (uint32_t i = 0; i < kWideLoads; ++i) {
      codes[i] = {}, scales[i] = 0;
      if (!unit.Has(i)) continue;
      const std::byte* from = kLevels == 255 ? unit.BytesOf(i) : unit.NibblesOf(i);
      codes[i] = *reinterpret_cast<const Words2*>(from);
      scales[i] = reinterpret_cast<const uint32_t*>(unit.scales)[unit.RowOf(i)];
    }
    if constexpr (kLevels == 15) {
      const int shift = unit.IsUpper() ? 4 : 0;
      PENSTOCK_UNROLL
      for (uint32_t i = 0; i < kWideLoads; ++i) {
        PENSTOCK_UNROLL
        for (int h = 0; h < 2; ++h) codes[i].word[h] = codes[i].word[h] >> shift & 0x0f0f0f0fu;
      }
    }
  }
  static PENSTOCK_DEVICE float CodeAt(const Words2& codes, int k) {
    return ByteToFloat(codes.word[k / 4], k % 4);
  }

  template <int kLevels>
  PENSTOCK_DEVICE void Affine() const {
    Words2 codes[kWideLoads];
    uint32_t scales[kWideLoads];
    Load<kLevels>(codes, scales);
    PENSTOCK_UNROLL
    for (uint32_t i = 0; i < kWideLoads; ++i) {
      float x[8];
      PENSTOCK_UNROLL
      for (int k = 0; k < 8; ++k) {
        x[k] = Add(Multiply(CodeAt(codes[i], k), LowBf16(scales[i])), HighBf16(scales[i]));
      }
      StoreValues(i, x);
    }
  }

  PENSTOCK_DEVICE void Rotated() const {
    constexpr int kOrder = kLanes * 8;
    Words2 codes[kWideLoads];
    uint32_t scales[kWideLoads];
    Load<15>(codes, scales);
    PENSTOCK_UNROLL
    for (uint32_t i = 0; i < kWideLoads; ++i) {
      const float normaliser = HadamardScale(kOrder);
      const float step = Multiply(LowBf16(scales[i]), normaliser);
      const float first =
          Multiply(HighBf16(scales[i]), Multiply(normaliser, static_cast<float>(kOrder)));
      float x[8];  // sums of codes, exact
      PENSTOCK_UNROLL
      for (int k = 0; k < 8; ++k) x[k] = CodeAt(codes[i], k);
      RotateWide<kLanes>(x);
      PENSTOCK_UNROLL
      for (int k = 0; k < 8; ++k) x[k] = Multiply(x[k], step);
      // The minimum's transform is one value per row.
      if (unit.Member() == 0) x[0] = Add(x[0], first);
      StoreValues(i, x);
    }
  }

  PENSTOCK_DEVICE void Decode() const {
    if (unit.code == KvRowCode::kF8E4m3) return F8<F8Format::kE4m3>();
    if (unit.code == KvRowCode::kF8E5m2) return F8<F8Format::kE5m2>();
    if (unit.code == KvRowCode::kI8) return Affine<255>();
    if (unit.code == KvRowCode::kI4) return Affine<15>();
    Rotated();
  }
};

// Decodes rows. Grid: units / kRowsWarps.
template <int kLanes>
__global__ void __launch_bounds__(kRowsWarps * 32)
    DecodeWideRowsKernel(const __grid_constant__ WideRowsParams p) {
  const uint32_t index = BlockX() * kRowsWarps + ThreadX() / 32;
  if (index >= p.total_units) return;
  WideDecoder<kLanes>{{p, index}}.Decode();
}

}  // namespace penstock::cuda
