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
  PENSTOCK_DEVICE uint32_t Code(float x) const {
    const float level = Multiply(Add(x, -minimum), inverse);
    return RoundedBits(level < kLevels ? level : static_cast<float>(kLevels)) & 0xffu;
  }
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
};
// The value of a code divided by the scale, exact.
template <F8Format kFormat>
PENSTOCK_DEVICE float F8Magnitude(uint32_t code) {
  using Format = F8Scale<kFormat>;
  constexpr uint32_t kExponentMask = 0x7fu >> Format::kMantissa << Format::kMantissa;
  // Subnormal code: take the least normal value with this mantissa and subtract the least normal
  // value.
  const bool small = (code & kExponentMask) == 0;
  const uint32_t bits =
      ((code & 0x7fu) << Format::kShift) + ((127u - Format::kBias) << 23) + (small ? 1u << 23 : 0u);
  return Add(BitsToFloat(bits), small ? -BitsToFloat(Format::kLeastNormal) : 0.0f);
}

}  // namespace penstock::cuda
