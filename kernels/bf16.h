#pragma once

#include <bit>
#include <cstdint>

namespace penstock {

// The upper half of an IEEE 754 float (bfloat16). Storage only: all arithmetic is done in float.
struct Bf16 {
  uint16_t bits = 0;
};

inline float ToFloat(Bf16 value) {
  return std::bit_cast<float>(static_cast<uint32_t>(value.bits) << 16);
}

// Rounds to nearest, ties to even. NaN stays NaN.
inline Bf16 ToBf16(float value) {
  const auto bits = std::bit_cast<uint32_t>(value);
  if ((bits & 0x7fffffffu) > 0x7f800000u) {
    return {static_cast<uint16_t>((bits >> 16) | 0x40u)};
  }
  return {static_cast<uint16_t>((bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16)};
}

}  // namespace penstock
