#pragma once

#include <bit>
#include <cstdint>

namespace penstock {

// The value of an IEEE 754 half-precision number. Exact.
inline float HalfToFloat(uint16_t half) {
  const uint32_t sign = (half & 0x8000u) << 16, exponent = (half >> 10) & 0x1fu;
  const uint32_t mantissa = half & 0x3ffu;
  if (exponent == 0) {  // zero or subnormal: mantissa * 2^-24
    const float magnitude = static_cast<float>(mantissa) * 0x1p-24f;
    return sign != 0 ? -magnitude : magnitude;
  }
  const uint32_t wide = exponent == 31 ? 255u : exponent + 112u;
  return std::bit_cast<float>(sign | wide << 23 | mantissa << 13);
}

// Rounds to nearest, ties to even. Values of 65520 and more become infinity.
inline uint16_t FloatToHalf(float value) {
  const auto bits = std::bit_cast<uint32_t>(value);
  const auto sign = static_cast<uint16_t>(bits >> 16 & 0x8000u);
  const float magnitude = std::bit_cast<float>(bits & 0x7fffffffu);
  if (!(magnitude < 65520.0f)) return sign | (magnitude != magnitude ? 0x7e00u : 0x7c00u);
  if (magnitude < 0x1p-14f) {
    // Adding 0.5 leaves the last bit worth 2^-24, the step of subnormal numbers.
    return sign | static_cast<uint16_t>(std::bit_cast<uint32_t>(magnitude + 0.5f) - 0x3f000000u);
  }
  const auto normal = std::bit_cast<uint32_t>(magnitude) - (112u << 23);
  return sign | static_cast<uint16_t>((normal + 0xfffu + (normal >> 13 & 1u)) >> 13);
}

}  // namespace penstock
