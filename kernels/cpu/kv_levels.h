#pragma once

// Rows as levels of a normal distribution, in two or three bits. As kv_lanes.h, only for
// kv_quant_<isa>.cc.

#include "kernels/cpu/kv_lanes.h"

namespace penstock::simd {
namespace {

template <int kBits>
constexpr NormalLevels<kBits> kLevels;

// Sums in one order, whatever the lanes.
constexpr int kParts = kLevelParts;
inline double SumOf(const double (&part)[kParts]) {
  double sum = 0;
  for (const double one : part) sum += one;
  return sum;
}

inline float RootMeanSquare(const float* x, int dims) {
  double part[kParts] = {};
  for (int i = 0; i < dims; i += kParts) {
    for (int k = 0; k < kParts; ++k) part[k] += double{x[i + k]} * double{x[i + k]};
  }
  return static_cast<float>(__builtin_sqrt(SumOf(part) / dims));
}

// The index of the magnitude of every element, for levels times `scale`.
template <int kBits>
inline void Assign(const float* x, int dims, float scale, uint8_t* index) {
  for (int i = 0; i < dims; ++i) {
    const float magnitude = __builtin_fabsf(x[i]);
    int above = 0;
    PENSTOCK_UNROLL_LANES
    for (const float bound : kLevels<kBits>.bound) above += magnitude > bound * scale ? 1 : 0;
    index[i] = static_cast<uint8_t>(above);
  }
}

// The scale whose product with the assigned levels is nearest to the row.
template <int kBits>
inline float BestScale(const float* x, const uint8_t* index, int dims) {
  double products[kParts] = {}, squares[kParts] = {};
  for (int i = 0; i < dims; i += kParts) {
    for (int k = 0; k < kParts; ++k) {
      const double level = kLevels<kBits>.magnitude[index[i + k]];
      products[k] += double{__builtin_fabsf(x[i + k])} * level;
      squares[k] += level * level;
    }
  }
  return static_cast<float>(SumOf(products) / SumOf(squares));
}

// Chooses the scale of a row and the magnitudes' indices under it, in rounds of Lloyd's method.
template <int kBits>
inline Bf16 FitRow(const float* x, int dims, uint8_t* index) {
  float scale = RootMeanSquare(x, dims);
  for (int round = 0; round < kLevelRounds; ++round) {
    Assign<kBits>(x, dims, scale, index);
    scale = BestScale<kBits>(x, index, dims);
  }
  const Bf16 rounded{Round(scale)};
  Assign<kBits>(x, dims, Widen(rounded.bits), index);
  return rounded;
}

template <int kBits>
inline void PackRow(const float* x, const uint8_t* index, int dims, uint8_t* codes) {
  const int quarter = dims / 4;
  for (int i = 0; i < dims * kBits / 8; ++i) codes[i] = 0;
  for (int i = 0; i < dims; ++i) {
    const auto sign = static_cast<uint8_t>(BitsOf(x[i]) >> 31);
    const int low = kBits == 2 ? index[i] | sign << 1 : index[i];
    codes[i % quarter] = static_cast<uint8_t>(codes[i % quarter] | low << (2 * (i / quarter)));
    if (kBits == 2) continue;
    uint8_t& signs = codes[quarter + i / 8];
    signs = static_cast<uint8_t>(signs | sign << (i % 8));
  }
}

template <int kBits>
inline void EncodeLevelRows(const Bf16* values, int64_t rows, int dims, uint8_t* codes,
                            Bf16* scales) {
  alignas(64) float x[kQuantisedGroupMax];
  alignas(64) uint8_t index[kQuantisedGroupMax];
  for (int64_t r = 0; r < rows; ++r, values += dims, codes += dims * kBits / 8) {
    for (int i = 0; i < dims; ++i) x[i] = Widen(values[i].bits);
    Rotate(x, 1, dims);
    scales[r] = FitRow<kBits>(x, dims, index);
    PackRow<kBits>(x, index, dims, codes);
  }
}
void EncodeLevels(const Bf16* values, int64_t rows, int dims, int bits, uint8_t* codes,
                  Bf16* scales) {
  if (bits == 2) {
    EncodeLevelRows<2>(values, rows, dims, codes, scales);
  } else {
    EncodeLevelRows<3>(values, rows, dims, codes, scales);
  }
}

template <int kBits>
struct ScaledLevels {
  static constexpr int kCount = 1 << (kBits - 1);

  explicit ScaledLevels(Bf16 scale) {
    for (int i = 0; i < kCount; ++i) {
      bits[i] = Round(kLevels<kBits>.magnitude[i] * Widen(scale.bits));
    }
  }
  uint16_t bits[kCount];  // of bf16
};

// The number of elements that are decoded together: as many 16-bit lanes as a vector has, but no
// more than have their codes at the same bits of bytes.
template <int kFixed>
constexpr int kLevelLanes = kFixed / 4 < 2 * kLanes ? kFixed / 4 : 2 * kLanes;
template <int kCount>
struct LevelLanes {
  typedef uint16_t Halves __attribute__((vector_size(2 * kCount)));
  typedef uint8_t Bytes __attribute__((vector_size(kCount)));
};

// For each lane, b where its mask is all ones, a where it is 0.
template <class Halves, class T>
inline Halves Choose(Halves mask, T a, T b) {
  return (mask & static_cast<T>(a ^ b)) ^ a;
}

template <class Halves>
inline Halves MagnitudesOf(Halves code, const ScaledLevels<2>& level) {
  return Choose(0 - (code & 1), level.bits[0], level.bits[1]);
}
template <class Halves>
inline Halves MagnitudesOf(Halves code, const ScaledLevels<3>& level) {
  const Halves odd = 0 - (code & 1);
  return Choose(0 - ((code >> 1) & 1), Choose(odd, level.bits[0], level.bits[1]),
                Choose(odd, level.bits[2], level.bits[3]));
}

// The sign bits of consecutive elements, from a bit for each element.
template <class Halves, std::size_t... kLane>
inline Halves SignsAt(const uint8_t* signs, std::index_sequence<kLane...>) {
  const Halves bit = {static_cast<uint16_t>(1u << (kLane % 16))...};
  uint16_t word[(sizeof...(kLane) + 15) / 16];
  __builtin_memcpy(word, signs, sizeof...(kLane) / 8);
  const Halves words = {word[kLane / 16]...};
  return (Halves)((words & bit) != 0) & 0x8000;
}

template <int kBits, int kFixed>
inline void DecodeLevelRow(const uint8_t* codes, const ScaledLevels<kBits>& level, Bf16* values) {
  constexpr int kQuarter = kFixed / 4, kCount = kLevelLanes<kFixed>;
  using Halves = typename LevelLanes<kCount>::Halves;
  PENSTOCK_UNROLL_LANES
  for (int j = 0; j < kQuarter; j += kCount) {
    typename LevelLanes<kCount>::Bytes packed;
    __builtin_memcpy(&packed, codes + j, sizeof(packed));
    const Halves wide = __builtin_convertvector(packed, Halves);
    PENSTOCK_UNROLL_LANES
    for (int part = 0; part < 4; ++part) {
      const Halves code = wide >> static_cast<uint16_t>(2 * part);
      const int d = part * kQuarter + j;
      Halves bits = MagnitudesOf(code, level);
      if constexpr (kBits == 2) bits |= (code & 2) << 14;
      if constexpr (kBits == 3) {
        bits |= SignsAt<Halves>(codes + kQuarter + d / 8, std::make_index_sequence<kCount>());
      }
      __builtin_memcpy(static_cast<void*>(values + d), &bits, sizeof(bits));
    }
  }
}

// The same for rows of any length.
template <int kBits>
inline void DecodeAnyLevelRow(const uint8_t* codes, const ScaledLevels<kBits>& level, int dims,
                              Bf16* values) {
  const int quarter = dims / 4;
  for (int d = 0; d < dims; ++d) {
    const int code = codes[d % quarter] >> (d / quarter * 2) & 3;
    const int negative = kBits == 2 ? code >> 1 : codes[quarter + d / 8] >> (d % 8) & 1;
    const uint16_t magnitude = level.bits[kBits == 2 ? code & 1 : code];
    values[d].bits = static_cast<uint16_t>(magnitude | negative << 15);
  }
}

template <int kFixed, int kBits>
inline void DecodeLevelRows(const uint8_t* __restrict codes, const Bf16* scales, int64_t rows,
                            int variable, Bf16* __restrict values) {
  const int dims = Dims<kFixed>(variable);
  for (int64_t r = 0; r < rows; ++r, values += dims, codes += dims * kBits / 8) {
    const ScaledLevels<kBits> level(scales[r]);
    if constexpr (kFixed != 0) {
      DecodeLevelRow<kBits, kFixed>(codes, level, values);
    } else {
      DecodeAnyLevelRow<kBits>(codes, level, dims, values);
    }
  }
}
template <int kFixed>
inline void DecodeTwoBitRows(const uint8_t* codes, const Bf16* scales, int64_t rows, int dims,
                             Bf16* values) {
  DecodeLevelRows<kFixed, 2>(codes, scales, rows, dims, values);
}
template <int kFixed>
inline void DecodeThreeBitRows(const uint8_t* codes, const Bf16* scales, int64_t rows, int dims,
                               Bf16* values) {
  DecodeLevelRows<kFixed, 3>(codes, scales, rows, dims, values);
}

void DecodeLevels(const uint8_t* codes, const Bf16* scales, int64_t rows, int dims, int bits,
                  Bf16* values) {
  if (bits == 2) PENSTOCK_FOR_DIMS(DecodeTwoBitRows, codes, scales, rows, dims, values)
  PENSTOCK_FOR_DIMS(DecodeThreeBitRows, codes, scales, rows, dims, values)
}

}  // namespace
}  // namespace penstock::simd
