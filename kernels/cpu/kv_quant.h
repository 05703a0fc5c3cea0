#pragma once

#include <cstdint>

#include "kernels/bf16.h"

// The arithmetic of the quantised KV formats, which wire, tiers and pages share. There is one table
// of functions per instruction set, and every table produces the same bytes.

namespace penstock {

enum class Isa;

// The parameters of a group of elements that share a scale: one head of one token, or a part of a
// latent. Both values are rounded to bf16 before they are used, the scale up and the minimum down,
// so that every element lies between code 0 and the highest code. x = minimum + code * scale
// differs from the element by at most scale / 2, before x itself is rounded to bf16. A scale of 0
// means that all elements are equal.
struct KvGroupParams {
  Bf16 scale;
  Bf16 minimum;
};

enum class F8Format : uint8_t { kE4m3 = 0, kE5m2 = 1 };

// Elements must be finite with an exponent field below this bound, so that the sums of a rotation
// stay finite.
inline constexpr int kQuantisedExponentMax = 240;
inline constexpr int kQuantisedGroupMax = 1024;

// The magnitudes of the 4 and the 8 levels that round a standard normal distribution best (Max,
// doi:10.1109/TIT.1960.1057548, table 1), and the bounds between them.
template <int kBits>
struct NormalLevels;
template <>
struct NormalLevels<2> {
  float magnitude[2] = {0.4528f, 1.5104f};
  float bound[1] = {0.9816f};
};
template <>
struct NormalLevels<3> {
  float magnitude[4] = {0.2451f, 0.7560f, 1.3439f, 2.1520f};
  float bound[3] = {0.5006f, 1.0500f, 1.7480f};
};
// The scale of a row of levels is fitted in so many rounds of Lloyd's method. Element i of the row
// is a term of part i % kLevelParts of a sum, whose parts are added up in ascending order.
inline constexpr int kLevelRounds = 2;
inline constexpr int kLevelParts = 16;

// One table of functions. Elements are Bf16 [rows][dims]; dims is a multiple of 16 and at most
// kQuantisedGroupMax; every row is a group. All elements obey kQuantisedExponentMax. The functions
// keep no state; any thread may call them.
struct KvQuantOps {
  // One byte per code, 0 .. 255.
  void (*encode_i8)(const Bf16* values, int64_t rows, int dims, uint8_t* codes,
                    KvGroupParams* params);
  void (*decode_i8)(const uint8_t* codes, const KvGroupParams* params, int64_t rows, int dims,
                    Bf16* values);

  // Codes 0 .. 15; byte j of a row is code[j] | code[j + dims / 2] << 4. With `rotate`, the row is
  // first multiplied by a normalised Hadamard matrix, which is its own inverse, in blocks of
  // HadamardOrder(dims) (the rotation of QuaRot: Ashkboos et al., arXiv 2404.00456).
  void (*encode_i4)(const Bf16* values, int64_t rows, int dims, bool rotate, uint8_t* codes,
                    KvGroupParams* params);
  void (*decode_i4)(const uint8_t* codes, const KvGroupParams* params, int64_t rows, int dims,
                    bool rotate, Bf16* values);

  // Multiplies float rows [rows][dims] by that matrix, in place. The operand of a product with
  // rotated codes is rotated this way.
  void (*rotate)(float* values, int64_t rows, int dims);

  // Codes of 2 or 3 bits of the rotated row. A code is a sign and one of 2 or 4 magnitudes, those
  // of NormalLevels: what a rotation makes of a row is close to normal (TurboQuant: Zandieh et al.,
  // arXiv 2504.19874). x = +-magnitude * scale; the scale is that of the least square error. Byte j
  // of a row has two bits of the codes of elements j + k * dims / 4, the first in its low bits.
  // With 3 bits, they are the magnitudes, and dims / 8 bytes with the signs follow: bit k of byte j
  // is that of element 8 * j + k. Decoded rows stay rotated.
  void (*encode_levels)(const Bf16* values, int64_t rows, int dims, int bits, uint8_t* codes,
                        Bf16* scales);
  void (*decode_levels)(const uint8_t* codes, const Bf16* scales, int64_t rows, int dims, int bits,
                        Bf16* values);

  // scales[row] is the lowest power of two for which every value fits; x = code * scale.
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
  // symbol = (level >> low_bits) + 7 if that is in 0 .. 14, else 15 (an escape). Returns the number
  // of escapes.
  int64_t (*to_symbols)(const int16_t* levels, int64_t size, int low_bits, uint8_t* symbols);
  // The inverse of to_symbols. It sets the low bits to 0 and symbols 15 to an unspecified value;
  // returns the number of symbols 15.
  int64_t (*from_symbols)(const uint8_t* symbols, int64_t size, int low_bits, int16_t* levels);
};

// The largest power of two that divides dims, but at most 128.
inline int HadamardOrder(int dims) {
  const int order = dims & -dims;
  return order < 128 ? order : 128;
}

const KvQuantOps& KvQuantOpsFor(Isa isa);
const KvQuantOps& ActiveKvQuantOps();

}  // namespace penstock
