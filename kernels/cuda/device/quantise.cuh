#pragma once

// The arithmetic of kernels/cpu/kv_quant_ops.h; the results must be equal bit for bit.

#include "kernels/cpu/kv_quant.h"
#include "kernels/cuda/device/device.cuh"

namespace penstock::cuda {

PENSTOCK_DEVICE uint32_t RoundAwayToBf16(float x) { return (FloatToBits(x) + 0xffffu) >> 16; }
PENSTOCK_DEVICE uint32_t RoundDownToBf16(float x) {
  return (FloatToBits(x) >> 31) != 0 ? RoundAwayToBf16(x) : FloatToBits(x) >> 16;
}
// Rounds |x| < 2^22 to nearest, ties to even; the result is in the low bits.
PENSTOCK_DEVICE uint32_t RoundedBits(float x) { return FloatToBits(Add(x, 12582912.0f)); }

// Affine codes: code = rint((x - minimum) / scale), 0 .. kLevels.
template <int kLevels>
struct AffineScale {
  uint32_t scale = 0, minimum_bits;  // as bf16
  float minimum, inverse;

  PENSTOCK_DEVICE AffineScale(float low, float high) {
    // Adding + 0 turns -0 into +0, so that only one of the two zeros is stored.
    minimum_bits = RoundDownToBf16(Add(low, 0.0f));
    minimum = WidenBf16(minimum_bits);
    float step = Multiply(Add(Add(high, 0.0f), -minimum), 1.0f / kLevels);
    if (step > 0) {
      step = step < 0x1p-120f ? 0x1p-120f : step;  // keeps the reciprocal finite
      scale = RoundAwayToBf16(step);
    }
    inverse = scale == 0 ? 0.0f : Divide(1.0f, WidenBf16(scale));
  }
  // The code is in the low byte; the other bytes are undefined.
  PENSTOCK_DEVICE uint32_t RoundedLevel(float x) const {
    const float level = Multiply(Add(x, -minimum), inverse);
    return RoundedBits(fminf(level, static_cast<float>(kLevels)));
  }
  PENSTOCK_DEVICE uint32_t Code(float x) const { return RoundedLevel(x) & 0xffu; }
};

template <F8Format kFormat>
struct F8Scale {
  static constexpr int kMantissa = kFormat == F8Format::kE4m3 ? 3 : 2;
  static constexpr uint32_t kBias = kFormat == F8Format::kE4m3 ? 7 : 15;
  static constexpr int kTop = kFormat == F8Format::kE4m3 ? 8 : 15;  // exponent of the highest value
  static constexpr uint32_t kShift = 23 - kMantissa;
  static constexpr uint32_t kLeastNormal = (127 + 1 - kBias) << 23;
  // Adding this to a value below the least normal one leaves its code in the low bits.
  static constexpr uint32_t kMagic = (127 + 1 - kBias + kShift) << 23;

  uint32_t scale;  // a power of two, as the bits of a float
  float inverse;

  // `top` is the largest magnitude of the group, as the bits of a bf16.
  PENSTOCK_DEVICE explicit F8Scale(uint32_t top) {
    const int field = static_cast<int>(top >> 7) + ((top & 0x7fu) > 0x60u ? 1 : 0) - kTop;
    scale = static_cast<uint32_t>(field < 1 ? 1 : field) << 23;
    inverse = BitsToFloat((254u << 23) - scale);
  }
  PENSTOCK_DEVICE uint32_t Code(float x) const {
    const uint32_t bits = FloatToBits(Multiply(x, inverse));
    const uint32_t magnitude = bits & 0x7fffffffu;
    const uint32_t normal = (magnitude + ((1u << (kShift - 1)) - 1) + (magnitude >> kShift & 1u) -
                             ((127u - kBias) << 23)) >>
                            kShift;
    const uint32_t small = FloatToBits(Add(BitsToFloat(magnitude), BitsToFloat(kMagic))) - kMagic;
    const uint32_t code = magnitude < kLeastNormal ? small : normal;
    return (code | (bits >> 24 & 0x80u)) & 0xffu;
  }
  // The codes of two values whose magnitudes are at most the group's largest.
  PENSTOCK_DEVICE uint32_t Pair(float low, float high) const {
    if constexpr (kFormat == F8Format::kE4m3 && kPacksE4m3) {
      return PackE4m3(Multiply(low, inverse), Multiply(high, inverse));
    } else {
      return Code(low) | Code(high) << 8;
    }
  }
};
// The value of the code in the upper byte of `top`; the other bytes may have any value.
template <F8Format kFormat>
PENSTOCK_DEVICE float F8Value(uint32_t top, float scale) {
  using Format = F8Scale<kFormat>;
  // Exponent and mantissa form a float that is too small by 2^(127 - bias), exactly: the codes'
  // subnormals are the floats'.
  constexpr uint32_t kMagnitude = 0x7fu << Format::kShift;
  constexpr float kUnit = kFormat == F8Format::kE4m3 ? 0x1p120f : 0x1p112f;
  static_assert(Format::kBias == (kFormat == F8Format::kE4m3 ? 7 : 15));
  const float code = Multiply(BitsToFloat(top >> (24 - Format::kShift) & kMagnitude), kUnit);
  return BitsToFloat(FloatToBits(Multiply(code, scale)) | (top & 0x80000000u));
}

// Byte `index` of a word as a float.
PENSTOCK_DEVICE float ByteToFloat(uint32_t word, int index) {
  const uint32_t bits = Permute(word, 0x4b000000u, 0x7440u + static_cast<uint32_t>(index));
  return Add(BitsToFloat(bits), -8388608.0f);  // 2^23
}

}  // namespace penstock::cuda
