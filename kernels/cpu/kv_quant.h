#pragma once

#include <cstdint>

#include "kernels/bf16.h"

// The arithmetic of the quantised KV formats, on wire, in tiers and in pages alike, one table of
// functions per instruction set. Every table gives the same bytes.

namespace penstock {

enum class Isa;

// A group of elements that share a scale: one head of one token (or a part of a latent). Both
// values are rounded to bf16 before they are used, scale up and minimum down, so that every value
// lies between codes 0 and the highest, and x = minimum + code * scale is off by scale / 2 at most
// (before it is rounded to bf16 itself). scale 0: all elements are equal.
struct KvGroupParams {
  Bf16 scale;
  Bf16 minimum;
};

enum class F8Format : uint8_t { kE4m3 = 0, kE5m2 = 1 };

// Finite values with an exponent field below this only: sums of a rotation stay finite.
inline constexpr int kQuantisedExponentMax = 240;
inline constexpr int kQuantisedGroupMax = 1024;

// Elements [rows][dims] of Bf16, dims a multiple of 16, at most kQuantisedGroupMax; every row is a
// group. Input obeys kQuantisedExponentMax.
struct KvQuantOps {
  // One byte a code, 0 .. 255.
  void (*encode_i8)(const Bf16* values, int64_t rows, int dims, uint8_t* codes,
                    KvGroupParams* params);
  void (*decode_i8)(const uint8_t* codes, const KvGroupParams* params, int64_t rows, int dims,
                    Bf16* values);

  // Codes 0 .. 15, byte j of a row is code[j] | code[j + dims / 2] << 4. With `rotate` the codes
  // are those of the row times a normalised Hadamard matrix, in blocks of HadamardOrder(dims); its
  // inverse is itself.
  void (*encode_i4)(const Bf16* values, int64_t rows, int dims, bool rotate, uint8_t* codes,
                    KvGroupParams* params);
  void (*decode_i4)(const uint8_t* codes, const KvGroupParams* params, int64_t rows, int dims,
                    bool rotate, Bf16* values);

  // Rows [rows][dims] of floats times that matrix, in place: what rotated codes are multiplied
  // with.
  void (*rotate)(float* values, int64_t rows, int dims);

  // scales[row] is the lowest power of two with which every value fits; x = code * scale.
  void (*encode_f8)(const Bf16* values, int64_t rows, int dims, F8Format format, uint8_t* codes,
                    Bf16* scales);
  void (*decode_f8)(const uint8_t* codes, const Bf16* scales, int64_t rows, int dims,
                    F8Format format, Bf16* values);

  // levels = rint((x - mean[d]) * (1 / step)), clamped to 16 bits.
  void (*quantise)(const Bf16* values, const float* mean, int64_t rows, int dims, float step,
                   int16_t* levels);
  // x = level * step + mean[d]
  void (*dequantise)(const int16_t* levels, const float* mean, int64_t rows, int dims, float step,
                     Bf16* values);
  // symbol = (level >> low_bits) + 7 where that is in 0 .. 14, else 15. Returns how many are 15.
  int64_t (*to_symbols)(const int16_t* levels, int64_t size, int low_bits, uint8_t* symbols);
  // The reverse, but for symbols 15 (any value) and the low bits (0). Returns how many are 15.
  int64_t (*from_symbols)(const uint8_t* symbols, int64_t size, int low_bits, int16_t* levels);
};

// The largest power of two that divides dims, at most 128.
inline int HadamardOrder(int dims) {
  const int order = dims & -dims;
  return order < 128 ? order : 128;
}

const KvQuantOps& KvQuantOpsFor(Isa isa);
const KvQuantOps& ActiveKvQuantOps();

}  // namespace penstock
