#pragma once

// The row codecs for rows of 64 or 128 elements without exact elements, in aligned memory. Four
// lanes have a row: octet o of lane m is elements 32 * o + 8 * m to + 7. So elements j and j +
// dims / 2, whose codes share a byte if they have 4 bits, belong to one lane.

#include "kernels/cuda/device/block_ops.cuh"
#include "kernels/cuda/device/kv_rows.cuh"
#include "kernels/cuda/device/quantise.cuh"

namespace penstock::cuda {

constexpr int kRowLanes = 4;
constexpr int kWideLoads = 4;  // vectors of 16 bytes that a lane has at once

struct WideRowsParams {
  KvRowsParams rows;
  uint32_t units = 0;        // groups of rows that a warp handles at once, in a plane of a head
  uint32_t total_units = 0;  // in all layers
};

// True if WideUnit supports the rows.
inline bool IsWide(const KvRowsParams& p) {
  const auto aligned = [](uint64_t bytes) { return bytes % 16 == 0; };
  return (p.dims == 64 || p.dims == 128) && p.exact == 0 && !p.behind_streams &&
         aligned(reinterpret_cast<uintptr_t>(p.values)) &&
         aligned(reinterpret_cast<uintptr_t>(p.payload)) && aligned(p.scales_offset) &&
         aligned(p.layer_bytes) && uint64_t{p.layers} * p.heads * p.planes * p.slots < 1u << 31;
}

// The rows that a warp handles at once: kSets of a row for every four lanes.
template <int kOctets>
struct WideUnit {
  static constexpr uint32_t kDims = kOctets * 8 * kRowLanes;
  static constexpr int kSets = kWideLoads / kOctets;
  static constexpr uint32_t kRows = kSets * 32 / kRowLanes;

  uint32_t layer, rows;  // number of rows from the unit's first one to the end of its plane
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

  // The row of this lane in a set.
  static PENSTOCK_DEVICE uint32_t RowOf(int set) {
    return static_cast<uint32_t>(set * 32 + ThreadX() % 32) / kRowLanes;
  }
  static PENSTOCK_DEVICE uint32_t Member() { return static_cast<uint32_t>(ThreadX()) % kRowLanes; }
  PENSTOCK_DEVICE bool Has(int set) const { return RowOf(set) < rows; }
  // Where a lane's octets are.
  PENSTOCK_DEVICE Words4* ValuesOf(int set, int octet) const {
    return reinterpret_cast<Words4*>(values) + (RowOf(set) * (kDims / 8) + Member()) +
           octet * kRowLanes;
  }
  PENSTOCK_DEVICE Words2* BytesOf(int set, int octet) const {
    return reinterpret_cast<Words2*>(codes) + (RowOf(set) * (kDims / 8) + Member()) +
           octet * kRowLanes;
  }
  // The codes of octets `octet` and `octet` + kOctets / 2.
  PENSTOCK_DEVICE Words2* NibblesOf(int set, int octet) const {
    return reinterpret_cast<Words2*>(codes) + (RowOf(set) * (kDims / 16) + Member()) +
           octet * kRowLanes;
  }
};

// Applies an operation to the four lanes that have a row.
template <class T, class Most>
PENSTOCK_DEVICE T ReduceRow(T v, const Most& most) {
  PENSTOCK_UNROLL
  for (int mask = 1; mask < kRowLanes; mask *= 2) v = most(v, ShuffleXor(v, mask));
  return v;
}

// The Hadamard transform of a row, unnormalised, stages in ascending order.
template <int kOctets>
PENSTOCK_DEVICE void RotateRow(float (&x)[kOctets * 8]) {
  constexpr int kElements = kOctets * 8;
  const auto stage = [&x](int half) {
    PENSTOCK_UNROLL
    for (int k = 0; k < kElements; ++k) {
      if ((k & half) != 0) continue;
      const float a = x[k], b = x[k + half];
      x[k] = Add(a, b);
      x[k + half] = Add(a, -b);
    }
  };
  PENSTOCK_UNROLL
  for (int half = 1; half < 8; half *= 2) stage(half);
  PENSTOCK_UNROLL
  for (int mask = 1; mask < kRowLanes; mask *= 2) {
    const uint32_t negate = (ThreadX() & mask) != 0 ? 0x80000000u : 0u;
    PENSTOCK_UNROLL
    for (int k = 0; k < kElements; ++k) {
      const float other = ShuffleXor(x[k], mask);
      x[k] = Add(other, BitsToFloat(FloatToBits(x[k]) ^ negate));
    }
  }
  PENSTOCK_UNROLL
  for (int half = 8; half < kElements; half *= 2) stage(half);
}

// Byte 0 of each of four words.
PENSTOCK_DEVICE uint32_t LowBytes(const uint32_t* w) {
  return Permute(Permute(w[0], w[1], 0x0040), Permute(w[2], w[3], 0x0040), 0x5410);
}

template <int kOctets>
struct WideEncoder {
  using Unit = WideUnit<kOctets>;
  static constexpr int kElements = kOctets * 8;
  static constexpr uint32_t kMagnitudes = 0x7fff7fffu;

  Unit unit;
  Words4 words[Unit::kSets][kOctets];

  PENSTOCK_DEVICE WideEncoder(const WideRowsParams& p, uint32_t index) : unit(p, index) {
    PENSTOCK_UNROLL
    for (int set = 0; set < Unit::kSets; ++set) {
      PENSTOCK_UNROLL
      for (int o = 0; o < kOctets; ++o) {
        words[set][o] = unit.Has(set) ? *unit.ValuesOf(set, o) : Words4{};
      }
    }
  }

  // True if this lane has a value whose exponent is not below kQuantisedExponentMax, that is, whose
  // upper four bits are all set.
  PENSTOCK_DEVICE bool IsUnfit() const {
    static_assert(kQuantisedExponentMax == 0xf0);
    uint32_t carries = 0;
    PENSTOCK_UNROLL
    for (int set = 0; set < Unit::kSets; ++set) {
      PENSTOCK_UNROLL
      for (int w = 0; w < kOctets * 4; ++w) carries |= (Word(set, w) & 0x78007800u) + 0x08000800u;
    }
    return (carries & 0x80008000u) != 0;
  }

  template <F8Format kFormat>
  PENSTOCK_DEVICE void F8(int set) const {
    const auto most = [](uint32_t a, uint32_t b) { return MaxBf16(a, b); };
    uint32_t top = 0;
    PENSTOCK_UNROLL
    for (int w = 0; w < kOctets * 4; ++w) top = most(top, Word(set, w) & kMagnitudes);
    const F8Scale<kFormat> f8(ReduceRow(most(top, top >> 16), most) & 0xffffu);
    if (!unit.Has(set)) return;
    PENSTOCK_UNROLL
    for (int o = 0; o < kOctets; ++o) {
      Words2 codes;
      PENSTOCK_UNROLL
      for (int h = 0; h < 2; ++h) {
        const uint32_t first = Word(set, o * 4 + 2 * h), second = Word(set, o * 4 + 2 * h + 1);
        codes.word[h] = f8.Pair(LowBf16(first), HighBf16(first)) |
                        f8.Pair(LowBf16(second), HighBf16(second)) << 16;
      }
      Store(unit.BytesOf(set, o), codes);
    }
    if (unit.Member() != 0) return;
    reinterpret_cast<uint16_t*>(unit.scales)[unit.RowOf(set)] =
        static_cast<uint16_t>(f8.scale >> 16);
  }

  // The scale of a row of bf16.
  template <int kLevels>
  PENSTOCK_DEVICE AffineScale<kLevels> ScaleOf(int set) const {
    constexpr uint32_t kNegateHigh = 0x80000000u;
    uint32_t least = Word(set, 0), most = least;
    PENSTOCK_UNROLL
    for (int w = 1; w < kOctets * 4; ++w) {
      least = MinBf16(least, Word(set, w));
      most = MaxBf16(most, Word(set, w));
    }
    // The minimum, and the negated maximum above it.
    const uint32_t range = ReduceRow(MinBf16(Permute(least, most, 0x5410) ^ kNegateHigh,
                                             Permute(least, most, 0x7632) ^ kNegateHigh),
                                     [](uint32_t a, uint32_t b) { return MinBf16(a, b); });
    return AffineScale<kLevels>(LowBf16(range), HighBf16(range ^ kNegateHigh));
  }

  template <int kLevels>
  PENSTOCK_DEVICE void StoreAffine(int set, const AffineScale<kLevels>& affine,
                                   const float (&x)[kElements]) const {
    if (!unit.Has(set)) return;
    uint32_t codes[kElements / 4];  // a byte each
    PENSTOCK_UNROLL
    for (int i = 0; i < kElements / 4; ++i) {
      uint32_t code[4];
      PENSTOCK_UNROLL
      for (int k = 0; k < 4; ++k) code[k] = affine.RoundedLevel(x[4 * i + k]);
      codes[i] = LowBytes(code);
    }
    constexpr int kHalf = kLevels == 15 ? kOctets / 2 : kOctets;
    PENSTOCK_UNROLL
    for (int o = 0; o < kHalf; ++o) {
      if constexpr (kLevels == 15) {
        constexpr int kUpper = kHalf * 2;
        Store(unit.NibblesOf(set, o), Words2{{codes[2 * o] | codes[2 * o + kUpper] << 4,
                                              codes[2 * o + 1] | codes[2 * o + 1 + kUpper] << 4}});
      } else {
        Store(unit.BytesOf(set, o), Words2{{codes[2 * o], codes[2 * o + 1]}});
      }
    }
    if (unit.Member() != 0) return;
    reinterpret_cast<uint32_t*>(unit.scales)[unit.RowOf(set)] = affine.scale | affine.minimum_bits
                                                                                   << 16;
  }

  template <int kLevels>
  PENSTOCK_DEVICE void Affine(int set) const {
    float x[kElements];
    Widen(set, x);
    StoreAffine(set, ScaleOf<kLevels>(set), x);
  }

  PENSTOCK_DEVICE void Rotated(int set) const {
    float x[kElements];
    Widen(set, x);
    RotateRow<kOctets>(x);
    PENSTOCK_UNROLL
    for (int k = 0; k < kElements; ++k) x[k] = Multiply(x[k], HadamardScale(Unit::kDims));
    float low = x[0], high = x[0];
    PENSTOCK_UNROLL
    for (int k = 1; k < kElements; ++k) low = fminf(low, x[k]), high = fmaxf(high, x[k]);
    low = ReduceRow(low, [](float a, float b) { return fminf(a, b); });
    high = ReduceRow(high, [](float a, float b) { return fmaxf(a, b); });
    StoreAffine(set, AffineScale<15>(low, high), x);
  }

  PENSTOCK_DEVICE void Code(int set) const {
    if (unit.code == KvRowCode::kF8E4m3) return F8<F8Format::kE4m3>(set);
    if (unit.code == KvRowCode::kF8E5m2) return F8<F8Format::kE5m2>(set);
    if (unit.code == KvRowCode::kI8) return Affine<255>(set);
    if (unit.code == KvRowCode::kI4) return Affine<15>(set);
    Rotated(set);
  }

 private:
  // Word `w` of the lane's elements in a row.
  PENSTOCK_DEVICE uint32_t Word(int set, int w) const { return words[set][w / 4].word[w % 4]; }
  PENSTOCK_DEVICE void Widen(int set, float (&x)[kElements]) const {
    PENSTOCK_UNROLL
    for (int w = 0; w < kOctets * 4; ++w) {
      x[2 * w] = LowBf16(Word(set, w));
      x[2 * w + 1] = HighBf16(Word(set, w));
    }
  }
};

// Encodes rows. Grid: units / kRowsWarps.
template <int kOctets>
__global__ void __launch_bounds__(kRowsWarps * 32)
    EncodeWideRowsKernel(const __grid_constant__ WideRowsParams p) {
  const uint32_t index = BlockX() * kRowsWarps + ThreadX() / 32;
  if (index >= p.total_units) return;
  const WideEncoder<kOctets> encoder(p, index);
  if (Ballot(encoder.IsUnfit()) != 0 && ThreadX() % 32 == 0) {
    AtomicMin(&p.rows.result->fault, PackKvFault(KvFault::kValues, encoder.unit.layer));
  }
  PENSTOCK_UNROLL
  for (int set = 0; set < WideUnit<kOctets>::kSets; ++set) encoder.Code(set);
}

template <int kOctets>
struct WideDecoder {
  using Unit = WideUnit<kOctets>;
  static constexpr int kElements = kOctets * 8;

  Unit unit;

  PENSTOCK_DEVICE void StoreRow(int set, const float (&x)[kElements]) const {
    if (!unit.Has(set)) return;
    PENSTOCK_UNROLL
    for (int o = 0; o < kOctets; ++o) {
      Words4 words;
      PENSTOCK_UNROLL
      for (int w = 0; w < 4; ++w) words.word[w] = PackBf16(x[o * 8 + 2 * w], x[o * 8 + 2 * w + 1]);
      Store(unit.ValuesOf(set, o), words);
    }
  }

  // The codes of rows as bytes, and their scales (and minima above them).
  struct Loaded {
    Words2 codes[Unit::kSets][kOctets];
    uint32_t scales[Unit::kSets];

    // The word of which element k of a set's row is byte k % 4.
    PENSTOCK_DEVICE uint32_t Word(int set, int k) const {
      return codes[set][k / 8].word[k / 4 % 2];
    }
  };
  PENSTOCK_DEVICE void LoadBytes(Loaded& loaded) const {
    PENSTOCK_UNROLL
    for (int set = 0; set < Unit::kSets; ++set) {
      PENSTOCK_UNROLL
      for (int o = 0; o < kOctets; ++o) {
        loaded.codes[set][o] = unit.Has(set) ? *unit.BytesOf(set, o) : Words2{};
      }
    }
  }
  PENSTOCK_DEVICE void LoadNibbles(Loaded& loaded) const {
    PENSTOCK_UNROLL
    for (int set = 0; set < Unit::kSets; ++set) {
      PENSTOCK_UNROLL
      for (int o = 0; o < kOctets / 2; ++o) {
        loaded.codes[set][o] = unit.Has(set) ? *unit.NibblesOf(set, o) : Words2{};
      }
      PENSTOCK_UNROLL
      for (int o = 0; o < kOctets / 2; ++o) {
        PENSTOCK_UNROLL
        for (int h = 0; h < 2; ++h) {
          const uint32_t pairs = loaded.codes[set][o].word[h];
          loaded.codes[set][o].word[h] = pairs & 0x0f0f0f0fu;
          loaded.codes[set][o + kOctets / 2].word[h] = pairs >> 4 & 0x0f0f0f0fu;
        }
      }
    }
  }
  // Scale is a uint16_t, or a uint32_t with the minimum above the scale.
  template <class Scale>
  PENSTOCK_DEVICE void LoadScales(Loaded& loaded) const {
    PENSTOCK_UNROLL
    for (int set = 0; set < Unit::kSets; ++set) {
      loaded.scales[set] =
          unit.Has(set) ? reinterpret_cast<const Scale*>(unit.scales)[unit.RowOf(set)] : Scale{0};
    }
  }

  template <F8Format kFormat>
  PENSTOCK_DEVICE void F8() const {
    Loaded loaded;
    LoadScales<uint16_t>(loaded);
    LoadBytes(loaded);
    PENSTOCK_UNROLL
    for (int set = 0; set < Unit::kSets; ++set) {
      float x[kElements];
      PENSTOCK_UNROLL
      for (int k = 0; k < kElements; ++k) {
        x[k] = F8Value<kFormat>(loaded.Word(set, k) << (24 - k % 4 * 8),
                                WidenBf16(loaded.scales[set]));
      }
      StoreRow(set, x);
    }
  }

  template <int kLevels>
  PENSTOCK_DEVICE void Affine() const {
    Loaded loaded;
    LoadScales<uint32_t>(loaded);
    if constexpr (kLevels == 255) LoadBytes(loaded);
    if constexpr (kLevels == 15) LoadNibbles(loaded);
    PENSTOCK_UNROLL
    for (int set = 0; set < Unit::kSets; ++set) {
      const float scale = LowBf16(loaded.scales[set]), minimum = HighBf16(loaded.scales[set]);
      float x[kElements];
      PENSTOCK_UNROLL
      for (int k = 0; k < kElements; ++k) {
        x[k] = Add(Multiply(ByteToFloat(loaded.Word(set, k), k % 4), scale), minimum);
      }
      StoreRow(set, x);
    }
  }

  PENSTOCK_DEVICE void Rotated() const {
    Loaded loaded;
    LoadScales<uint32_t>(loaded);
    LoadNibbles(loaded);
    const float normaliser = HadamardScale(Unit::kDims);
    PENSTOCK_UNROLL
    for (int set = 0; set < Unit::kSets; ++set) {
      const float step = Multiply(LowBf16(loaded.scales[set]), normaliser);
      const float first = Multiply(HighBf16(loaded.scales[set]),
                                   Multiply(normaliser, static_cast<float>(Unit::kDims)));
      float x[kElements];  // sums of codes, exact
      PENSTOCK_UNROLL
      for (int k = 0; k < kElements; ++k) x[k] = ByteToFloat(loaded.Word(set, k), k % 4);
      RotateRow<kOctets>(x);
      PENSTOCK_UNROLL
      for (int k = 0; k < kElements; ++k) x[k] = Multiply(x[k], step);
      // The minimum's transform is one value per row.
      if (unit.Member() == 0) x[0] = Add(x[0], first);
      StoreRow(set, x);
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
template <int kOctets>
__global__ void __launch_bounds__(kRowsWarps * 32)
    DecodeWideRowsKernel(const __grid_constant__ WideRowsParams p) {
  const uint32_t index = BlockX() * kRowsWarps + ThreadX() / 32;
  if (index >= p.total_units) return;
  WideDecoder<kOctets>{{p, index}}.Decode();
}

}  // namespace penstock::cuda
