#pragma once

// KvQuantOps as plain loops that the compiler vectorises. Only kv_quant_<isa>.cc include this file,
// each with its own compiler flags and PENSTOCK_QUANT_LANES. Everything is in an unnamed namespace,
// so that the linker can never pick a function compiled for a newer machine for an older one. No
// result depends on the order of lanes, and no multiplication is fused with an addition.

#include "kernels/cpu/kv_lanes.h"
#include "kernels/cpu/kv_levels.h"
#include "kernels/cpu/kv_quant.h"

namespace penstock::simd {
namespace {

// Rounds to bf16 away from zero, and towards zero.
inline uint16_t RoundAway(float x) { return static_cast<uint16_t>((BitsOf(x) + 0xffffu) >> 16); }
inline uint16_t RoundDown(float x) {
  return (BitsOf(x) >> 31) != 0 ? RoundAway(x) : static_cast<uint16_t>(BitsOf(x) >> 16);
}
// Maps the bits of a float to an integer with the same order. Its own inverse.
inline int32_t Ordered(int32_t bits) { return bits ^ ((bits >> 31) & 0x7fffffff); }

// Rounds |x| < 2^22 to nearest, ties to even; the result is in the low bits (adding 1.5 * 2^23
// leaves no bits for a fraction).
inline uint32_t RoundedBits(float x) { return BitsOf(x + 12582912.0f); }

struct Range {
  float low, high;
};

inline Range RangeOf(const float* x, int dims) {
  int32_t low = 0x7fffffff, high = -0x7fffffff - 1;
  for (int i = 0; i < dims; ++i) {
    const int32_t key = Ordered(static_cast<int32_t>(BitsOf(x[i])));
    low = key < low ? key : low;
    high = key > high ? key : high;
  }
  // Adding + 0 turns -0 into +0, so that only one of the two zeros is stored.
  return {FloatOf(static_cast<uint32_t>(Ordered(low))) + 0.0f,
          FloatOf(static_cast<uint32_t>(Ordered(high))) + 0.0f};
}

// codes = rint((x - minimum) / scale), one byte each.
template <int kLevels>
inline KvGroupParams EncodeGroup(const float* x, int dims, uint8_t* codes) {
  const Range range = RangeOf(x, dims);
  const KvGroupParams params{.scale = {0}, .minimum = {RoundDown(range.low)}};
  const float minimum = Widen(params.minimum.bits);
  float step = (range.high - minimum) * (1.0f / kLevels);
  uint16_t scale = 0;
  if (step > 0) {
    if (step < 0x1p-120f) step = 0x1p-120f;  // keeps the reciprocal finite
    scale = RoundAway(step);
  }
  const float inverse = scale == 0 ? 0.0f : 1.0f / Widen(scale);
  for (int i = 0; i < dims; ++i) {
    const float level = (x[i] - minimum) * inverse;
    codes[i] = static_cast<uint8_t>(RoundedBits(level < kLevels ? level : float{kLevels}));
  }
  return {.scale = {scale}, .minimum = params.minimum};
}

template <int kFixed>
inline void EncodeI8Rows(const Bf16* values, int64_t rows, int variable, uint8_t* codes,
                         KvGroupParams* params) {
  const int dims = Dims<kFixed>(variable);
  alignas(64) float x[kFixed == 0 ? kQuantisedGroupMax : kFixed];
  for (int64_t r = 0; r < rows; ++r, values += dims, codes += dims) {
    for (int i = 0; i < dims; ++i) x[i] = Widen(values[i].bits);
    params[r] = EncodeGroup<255>(x, dims, codes);
  }
}
void EncodeI8(const Bf16* values, int64_t rows, int dims, uint8_t* codes, KvGroupParams* params) {
  PENSTOCK_FOR_DIMS(EncodeI8Rows, values, rows, dims, codes, params)
}

template <int kFixed>
inline void DecodeI8Rows(const uint8_t* __restrict codes, const KvGroupParams* params, int64_t rows,
                         int variable, Bf16* __restrict values) {
  const int dims = Dims<kFixed>(variable);
  for (int64_t r = 0; r < rows; ++r, values += dims, codes += dims) {
    const float scale = Widen(params[r].scale.bits), minimum = Widen(params[r].minimum.bits);
    for (int i = 0; i < dims; ++i) {
      // The product of two 8-bit significands is exact, so the sum is rounded once whether or not
      // it is fused.
      values[i].bits = Round(static_cast<float>(codes[i]) * scale + minimum);
    }
  }
}
void DecodeI8(const uint8_t* codes, const KvGroupParams* params, int64_t rows, int dims,
              Bf16* values) {
  PENSTOCK_FOR_DIMS(DecodeI8Rows, codes, params, rows, dims, values)
}

template <int kFixed>
inline void EncodeI4Rows(const Bf16* values, int64_t rows, int variable, bool rotate,
                         uint8_t* codes, KvGroupParams* params) {
  const int dims = Dims<kFixed>(variable);
  const int order = HadamardOrder(dims);
  const float normaliser = Normaliser(order);
  alignas(64) float x[kFixed == 0 ? kQuantisedGroupMax : kFixed];
  alignas(64) uint8_t wide[kFixed == 0 ? kQuantisedGroupMax : kFixed];
  for (int64_t r = 0; r < rows; ++r, values += dims, codes += dims / 2) {
    if (kFixed != 0 && rotate) {
      if constexpr (kFixed != 0) RotateRow<kFixed>(values, normaliser, x);
    } else {
      for (int i = 0; i < dims; ++i) x[i] = Widen(values[i].bits);
      if (rotate) {
        Hadamard<float, FloatLanes>(x, dims, order);
        for (int i = 0; i < dims; ++i) x[i] *= normaliser;
      }
    }
    params[r] = EncodeGroup<15>(x, dims, wide);
    for (int j = 0; j < dims / 2; ++j) {
      codes[j] = static_cast<uint8_t>(wide[j] | wide[j + dims / 2] << 4);
    }
  }
}
void EncodeI4(const Bf16* values, int64_t rows, int dims, bool rotate, uint8_t* codes,
              KvGroupParams* params) {
  PENSTOCK_FOR_DIMS(EncodeI4Rows, values, rows, dims, rotate, codes, params)
}

template <int kFixed>
inline void DecodePlainI4Rows(const uint8_t* __restrict codes, const KvGroupParams* params,
                              int64_t rows, int variable, Bf16* __restrict values) {
  const int dims = Dims<kFixed>(variable), half = dims / 2;
  for (int64_t r = 0; r < rows; ++r, values += dims, codes += half) {
    const float scale = Widen(params[r].scale.bits), minimum = Widen(params[r].minimum.bits);
    for (int j = 0; j < half; ++j) {
      values[j].bits = Round(static_cast<float>(codes[j] & 15) * scale + minimum);
    }
    for (int j = 0; j < half; ++j) {
      values[j + half].bits = Round(static_cast<float>(codes[j] >> 4) * scale + minimum);
    }
  }
}

inline void StoreRounded(FloatLanes x, Bf16* values) {
  WordLanes bits;
  __builtin_memcpy(&bits, &x, sizeof(bits));
  const WordLanes rounded = (bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16;
  const HalfLanes halves = __builtin_convertvector(rounded, HalfLanes);
  __builtin_memcpy(static_cast<void*>(values), &halves, sizeof(halves));
}

// Decodes a row of kFixed elements (one block of the transform) in registers.
template <int kFixed>
inline void DecodeRotatedRow(const uint8_t* codes, float scale, float first, Bf16* values) {
  constexpr int kCount = kFixed / kLanes;
  ShortLanes x[kCount];
  PENSTOCK_UNROLL_LANES
  for (int k = 0; k < kCount / 2; ++k) {
    ByteLanes pair;
    __builtin_memcpy(&pair, codes + k * kLanes, sizeof(pair));
    const HalfLanes wide = __builtin_convertvector(pair, HalfLanes);
    x[k] = (ShortLanes)(wide & 15);
    x[k + kCount / 2] = (ShortLanes)(wide >> 4);
  }
  HadamardOfRegisters<int16_t>(x);
  PENSTOCK_UNROLL_LANES
  for (int k = 0; k < kCount; ++k) {
    FloatLanes value =
        __builtin_convertvector(__builtin_convertvector(x[k], IntLanes), FloatLanes) * scale;
    if (k == 0) value[0] += first;
    StoreRounded(value, values + k * kLanes);
  }
}

// The transform of the codes is exact in integers; the transform of the minimum is a single value
// per block.
template <int kFixed>
inline void DecodeRotatedI4Rows(const uint8_t* __restrict codes, const KvGroupParams* params,
                                int64_t rows, int variable, Bf16* __restrict values) {
  const int dims = Dims<kFixed>(variable), half = dims / 2;
  const int order = HadamardOrder(dims);
  const float normaliser = Normaliser(order);
  for (int64_t r = 0; r < rows; ++r, values += dims, codes += half) {
    const float scale = Widen(params[r].scale.bits) * normaliser;
    const float first = Widen(params[r].minimum.bits) * (normaliser * static_cast<float>(order));
    if constexpr (kFixed != 0) {
      DecodeRotatedRow<kFixed>(codes, scale, first, values);
    } else {
      alignas(64) int16_t x[kQuantisedGroupMax];
      for (int j = 0; j < half; ++j) x[j] = codes[j] & 15;
      for (int j = 0; j < half; ++j) x[j + half] = codes[j] >> 4;
      Hadamard<int16_t, ShortLanes>(x, dims, order);
      for (int i = 0; i < dims; ++i) values[i].bits = Round(static_cast<float>(x[i]) * scale);
      for (int i = 0; i < dims; i += order) {
        values[i].bits = Round(static_cast<float>(x[i]) * scale + first);
      }
    }
  }
}
void DecodeI4(const uint8_t* codes, const KvGroupParams* params, int64_t rows, int dims,
              bool rotate, Bf16* values) {
  if (rotate) PENSTOCK_FOR_DIMS(DecodeRotatedI4Rows, codes, params, rows, dims, values)
  PENSTOCK_FOR_DIMS(DecodePlainI4Rows, codes, params, rows, dims, values)
}

template <F8Format kFormat>
struct F8 {
  static constexpr int kMantissa = kFormat == F8Format::kE4m3 ? 3 : 2;
  static constexpr int kBias = kFormat == F8Format::kE4m3 ? 7 : 15;
  static constexpr int kTop = kFormat == F8Format::kE4m3 ? 8 : 15;  // exponent of the highest value
  static constexpr int kShift = 23 - kMantissa;
  static constexpr uint32_t kLeastNormal = static_cast<uint32_t>(127 + 1 - kBias) << 23;
  // Adding this to a value below the least normal one leaves its code in the low bits.
  static constexpr uint32_t kMagic = static_cast<uint32_t>(127 + 1 - kBias + kShift) << 23;
};

// Returns, as a float's bits, the power of two that scales `top` (magnitude bits of a bf16) to at
// most 1.75 * 2^kTop. It lies between 2^-126 and 2^126.
template <F8Format kFormat>
inline uint32_t F8Scale(uint32_t top) {
  const int exponent = static_cast<int>(top >> 7) + ((top & 0x7f) > 0x60 ? 1 : 0);
  const int field = exponent - F8<kFormat>::kTop;
  return static_cast<uint32_t>(field < 1 ? 1 : field) << 23;
}

template <F8Format kFormat>
inline void EncodeF8Rows(const Bf16* values, int64_t rows, int dims, uint8_t* codes, Bf16* scales) {
  using Format = F8<kFormat>;
  for (int64_t r = 0; r < rows; ++r, values += dims, codes += dims) {
    uint16_t top = 0;
    for (int i = 0; i < dims; ++i) {
      const auto magnitude = static_cast<uint16_t>(values[i].bits & 0x7fff);
      top = magnitude > top ? magnitude : top;
    }
    const uint32_t scale = F8Scale<kFormat>(top);
    scales[r].bits = static_cast<uint16_t>(scale >> 16);
    const float inverse = FloatOf((254u << 23) - scale);
    for (int i = 0; i < dims; ++i) {
      const uint32_t bits = BitsOf(Widen(values[i].bits) * inverse);
      const uint32_t magnitude = bits & 0x7fffffffu;
      const uint32_t normal =
          (magnitude + ((1u << (Format::kShift - 1)) - 1) + ((magnitude >> Format::kShift) & 1u) -
           (static_cast<uint32_t>(127 - Format::kBias) << 23)) >>
          Format::kShift;
      const uint32_t small = BitsOf(FloatOf(magnitude) + FloatOf(Format::kMagic)) - Format::kMagic;
      const uint32_t code = magnitude < Format::kLeastNormal ? small : normal;
      codes[i] = static_cast<uint8_t>(code | (bits >> 24 & 0x80u));
    }
  }
}
void EncodeF8(const Bf16* values, int64_t rows, int dims, F8Format format, uint8_t* codes,
              Bf16* scales) {
  if (format == F8Format::kE4m3) {
    EncodeF8Rows<F8Format::kE4m3>(values, rows, dims, codes, scales);
  } else {
    EncodeF8Rows<F8Format::kE5m2>(values, rows, dims, codes, scales);
  }
}

// Decodes codes with any scale. The codes for NaN never occur.
template <F8Format kFormat>
inline void DecodeF8Row(const uint8_t* __restrict codes, float scale, int dims,
                        Bf16* __restrict values) {
  using Format = F8<kFormat>;
  constexpr uint32_t kExponentMask = 0x7fu >> Format::kMantissa << Format::kMantissa;
  for (int i = 0; i < dims; ++i) {
    const uint32_t code = codes[i];
    // Subnormal code: take the least normal value with this mantissa and subtract the least
    // normal value.
    const bool small = (code & kExponentMask) == 0;
    const uint32_t bits = ((code & 0x7fu) << Format::kShift) +
                          (static_cast<uint32_t>(127 - Format::kBias) << 23) +
                          (small ? 1u << 23 : 0u);
    const float magnitude = FloatOf(bits) - (small ? FloatOf(Format::kLeastNormal) : 0.0f);
    const uint32_t value = BitsOf(magnitude * scale) | (code & 0x80u) << 24;
    values[i].bits = Round(FloatOf(value));
  }
}

// The lowest and the highest exponent field of scales with which every code is a normal bf16 or 0.
template <F8Format kFormat>
constexpr int kPlainScaleMin = F8<kFormat>::kBias + F8<kFormat>::kMantissa;
template <F8Format kFormat>
constexpr int kPlainScaleMax = 254 - F8<kFormat>::kTop - 1;

// The same for a scale that is a power of two, with an exponent field in that range, in integers.
template <F8Format kFormat>
inline void DecodePlainF8Row(const uint8_t* __restrict codes, int scale_field, int dims,
                             Bf16* __restrict values) {
  using Format = F8<kFormat>;
  constexpr int kShift = 7 - Format::kMantissa;
  const auto offset = static_cast<uint16_t>((scale_field - Format::kBias) << 7);
  for (int i = 0; i < dims; ++i) {
    const uint16_t code = codes[i];
    const auto magnitude = static_cast<uint16_t>(code & 0x7f);
    // A subnormal code is its mantissa times 2^(1 - kBias - kMantissa): the greatest power of two
    // in it becomes the exponent.
    const uint16_t one = (1 - Format::kMantissa) * 128;
    const auto two = static_cast<uint16_t>((2 - Format::kMantissa) * 128 + ((magnitude & 1) << 6));
    const auto four = static_cast<uint16_t>((3 - Format::kMantissa) * 128 + ((magnitude & 3) << 5));
    uint16_t bits = static_cast<uint16_t>(magnitude << kShift);
    if constexpr (Format::kMantissa == 3) bits = magnitude < 8 ? four : bits;
    bits = magnitude < 4 ? two : bits;
    bits = magnitude < 2 ? one : bits;
    bits = static_cast<uint16_t>(bits + offset);
    bits = magnitude == 0 ? uint16_t{0} : bits;
    values[i].bits = static_cast<uint16_t>(bits | (code & 0x80) << 8);
  }
}

template <F8Format kFormat>
inline void DecodeF8Rows(const uint8_t* __restrict codes, const Bf16* scales, int64_t rows,
                         int dims, Bf16* __restrict values) {
  for (int64_t r = 0; r < rows; ++r, values += dims, codes += dims) {
    const int field = scales[r].bits >> 7;  // with the sign, so that negative scales are not plain
    const bool plain = (scales[r].bits & 0x7f) == 0 && field >= kPlainScaleMin<kFormat> &&
                       field <= kPlainScaleMax<kFormat>;
    if (plain) {
      DecodePlainF8Row<kFormat>(codes, field, dims, values);
    } else {
      DecodeF8Row<kFormat>(codes, Widen(scales[r].bits), dims, values);
    }
  }
}
void DecodeF8(const uint8_t* codes, const Bf16* scales, int64_t rows, int dims, F8Format format,
              Bf16* values) {
  if (format == F8Format::kE4m3) {
    DecodeF8Rows<F8Format::kE4m3>(codes, scales, rows, dims, values);
  } else {
    DecodeF8Rows<F8Format::kE5m2>(codes, scales, rows, dims, values);
  }
}

template <int kFixed>
inline void QuantiseRows(const Bf16* __restrict values, const float* __restrict mean, int64_t rows,
                         int variable, float step, int16_t* __restrict levels) {
  const int dims = Dims<kFixed>(variable);
  const float inverse = 1.0f / step;
  for (int64_t r = 0; r < rows; ++r, values += dims, levels += dims) {
    for (int i = 0; i < dims; ++i) {
      float level = (Widen(values[i].bits) - mean[i]) * inverse;
      level = level < 32767.0f ? level : 32767.0f;
      level = level > -32767.0f ? level : -32767.0f;
      levels[i] = static_cast<int16_t>(RoundedBits(level));
    }
  }
}
void Quantise(const Bf16* values, const float* mean, int64_t rows, int dims, float step,
              int16_t* levels) {
  PENSTOCK_FOR_DIMS(QuantiseRows, values, mean, rows, dims, step, levels)
}

template <int kFixed>
inline void DequantiseRows(const int16_t* __restrict levels, const float* __restrict mean,
                           int64_t rows, int variable, float step, Bf16* __restrict values) {
  const int dims = Dims<kFixed>(variable);
  for (int64_t r = 0; r < rows; ++r, values += dims, levels += dims) {
    for (int i = 0; i < dims; ++i) {
      values[i].bits = Round(static_cast<float>(levels[i]) * step + mean[i]);
    }
  }
}
void Dequantise(const int16_t* levels, const float* mean, int64_t rows, int dims, float step,
                Bf16* values){
    PENSTOCK_FOR_DIMS(DequantiseRows, levels, mean, rows, dims, step, values)}

int64_t ToSymbols(const int16_t* __restrict levels, int64_t size, int low_bits,
                  uint8_t* __restrict symbols) {
  int64_t escapes = 0;
  for (int64_t first = 0; first < size; first += 64) {
    int16_t outside = 0;
    for (int64_t i = first; i < first + 64; ++i) {
      const auto high = static_cast<int16_t>((levels[i] >> low_bits) + 7);
      const int16_t symbol = static_cast<uint16_t>(high) < 15 ? high : int16_t{15};
      symbols[i] = static_cast<uint8_t>(symbol);
      outside = static_cast<int16_t>(outside + (symbol == 15 ? 1 : 0));
    }
    escapes += outside;
  }
  return escapes;
}

int64_t FromSymbols(const uint8_t* __restrict symbols, int64_t size, int low_bits,
                    int16_t* __restrict levels) {
  int64_t escapes = 0;
  for (int64_t first = 0; first < size; first += 64) {
    int16_t outside = 0;
    for (int64_t i = first; i < first + 64; ++i) {
      const auto symbol = static_cast<int16_t>(symbols[i]);
      levels[i] = static_cast<int16_t>((symbol - 7) * (1 << low_bits));
      outside = static_cast<int16_t>(outside + (symbol == 15 ? 1 : 0));
    }
    escapes += outside;
  }
  return escapes;
}

constexpr KvQuantOps MakeKvQuantOps() {
  return {.encode_i8 = EncodeI8,
          .decode_i8 = DecodeI8,
          .encode_i4 = EncodeI4,
          .decode_i4 = DecodeI4,
          .rotate = Rotate,
          .encode_levels = EncodeLevels,
          .decode_levels = DecodeLevels,
          .encode_f8 = EncodeF8,
          .decode_f8 = DecodeF8,
          .quantise = Quantise,
          .dequantise = Dequantise,
          .to_symbols = ToSymbols,
          .from_symbols = FromSymbols};
}

}  // namespace
}  // namespace penstock::simd
