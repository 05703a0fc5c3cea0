#pragma once

#include <cmath>
#include <cstdint>

namespace penstock {

// An 8-bit number of sign, 4 bits of exponent (bias 7) and 3 bits of mantissa: E4M3FN of the Open
// Compute Project's OFP8 specification. It has no infinity; 0x7f and 0xff are NaN.
inline constexpr float kE4m3Max = 448;

inline bool IsE4m3Nan(uint8_t code) { return (code & 0x7f) == 0x7f; }

inline float E4m3ToFloat(uint8_t code) {
  if (IsE4m3Nan(code)) return NAN;
  const int exponent = code >> 3 & 15, mantissa = code & 7;
  const int significand = exponent == 0 ? mantissa : 8 + mantissa;
  const float magnitude =
      std::ldexp(static_cast<float>(significand), (exponent == 0 ? 1 : exponent) - 10);
  return (code & 0x80) != 0 ? -magnitude : magnitude;
}

// Rounds to nearest, ties to even. |value| is at most kE4m3Max.
inline uint8_t FloatToE4m3(float value) {
  const float magnitude = std::fabs(value);
  // The spacing of numbers is 2^-9 below 2^-5, and an eighth of the power of two below from there.
  const int power = magnitude < 0x1p-6f ? -6 : std::ilogb(magnitude);
  const auto steps = static_cast<int>(std::nearbyint(std::ldexp(magnitude, 3 - power)));
  // Steps are added to the code, so that a carry raises the exponent.
  const int code = ((power + 6) << 3) + steps;
  return static_cast<uint8_t>(code | (std::signbit(value) ? 0x80 : 0));
}

}  // namespace penstock
