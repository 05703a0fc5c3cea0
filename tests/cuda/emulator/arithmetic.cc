#include "tests/cuda/emulator/arithmetic.h"

#include <cmath>

#include "tests/cuda/emulator/emulator.h"

namespace penstock::cuda::emulator {
namespace {

float Cell(bool bf16, uint32_t word, int half) {
  const uint32_t bits = half != 0 ? word >> 16 : word & 0xffffu;
  return bf16 ? BitsToFloat(bits << 16) : HalfToFloat(bits);
}

}  // namespace

// IEEE binary16 in integer arithmetic: clang 14 has no such type on this machine.
float HalfToFloat(uint32_t bits) {
  const uint32_t exponent = bits >> 10 & 31, mantissa = bits & 1023;
  float x = static_cast<float>(mantissa) * 0x1p-24f;
  if (exponent > 0) x = BitsToFloat((exponent + 112) << 23 | mantissa << 13);
  if (exponent == 31) x = BitsToFloat(0x7f800000u | mantissa << 13);
  return (bits & 0x8000u) != 0 ? -x : x;
}

uint32_t FloatToHalf(float x) {
  const uint32_t bits = FloatToBits(x), sign = bits >> 16 & 0x8000u;
  const uint32_t magnitude = bits & 0x7fffffffu;
  if (magnitude > 0x7f800000u) return 0x7fff;
  if (magnitude >= 0x477ff000u) return sign | 0x7c00u;  // rounds to 65,520 or more
  if (magnitude < 0x38800000u) {                        // below 2^-14: units of 2^-24
    return sign | static_cast<uint32_t>(std::nearbyint(std::fabs(x) * 0x1p24f));
  }
  return sign | ((magnitude + 0xfffu + (magnitude >> 13 & 1u) - (112u << 23)) >> 13);
}

uint32_t FloatToBf16(float x) {
  const uint32_t bits = FloatToBits(x);
  if ((bits & 0x7fffffffu) > 0x7f800000u) return 0x7fff;
  return (bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16;
}

float E4m3ToFloat(uint32_t code) {
  const uint32_t exponent = code >> 3 & 15, mantissa = code & 7;
  float x = static_cast<float>(mantissa) * 0x1p-9f;
  if (exponent > 0) x = BitsToFloat((exponent + 120) << 23 | mantissa << 20);
  if (exponent == 15 && mantissa == 7) x = NAN;
  return (code & 0x80) != 0 ? -x : x;
}

uint32_t FloatToE4m3(float x) {
  const uint32_t bits = FloatToBits(x), sign = bits >> 24 & 0x80u;
  const uint32_t magnitude = bits & 0x7fffffffu;
  if (magnitude > 0x7f800000u) return sign | 0x7fu;
  if (magnitude < 0x3c800000u) {  // below 2^-6: units of 2^-9
    return sign | static_cast<uint32_t>(std::nearbyint(std::fabs(x) * 0x1p9f));
  }
  const uint32_t code = (magnitude + 0x7ffffu + (magnitude >> 20 & 1u) - (120u << 23)) >> 20;
  return sign | (code < 0x7eu ? code : 0x7eu);
}

// Fragments as in the PTX manual, section "Matrix Fragments for mma.m16n8k16".
void ApplyMma(Lane* lanes, bool bf16) {
  float a[16][16], b[16][8];
  for (int i = 0; i < kLanes; ++i) {
    const int group = i / 4, member = i % 4;
    for (int half = 0; half < 2; ++half) {
      for (int r = 0; r < 4; ++r) {
        a[group + r % 2 * 8][member * 2 + half + r / 2 * 8] = Cell(bf16, lanes[i].in[r], half);
      }
      for (int r = 0; r < 2; ++r) {
        b[member * 2 + half + r * 8][group] = Cell(bf16, lanes[i].in[4 + r], half);
      }
    }
  }
  for (int row = 0; row < 16; ++row) {
    const Lane* const first = lanes + row % 8 * 4;  // holds the row with the three that follow
    const int r = row / 8 * 2;
    float sums[8];
    for (int column = 0; column < 8; ++column) {
      sums[column] = first[column / 2].accumulator[r + column % 2];
    }
    for (int k = 0; k < 16; ++k) {
      for (int column = 0; column < 8; ++column) sums[column] += a[row][k] * b[k][column];
    }
    for (int column = 0; column < 8; ++column) {
      first[column / 2].accumulator[r + column % 2] = sums[column];
    }
  }
}

void ApplyLoad(Lane* lanes, bool transposed) {
  for (int i = 0; i < kLanes; ++i) {
    for (int matrix = 0; matrix < 4; ++matrix) {
      uint32_t cells[2];
      for (int half = 0; half < 2; ++half) {
        const int first = i / 4, second = i % 4 * 2 + half;
        cells[half] = transposed ? lanes[matrix * 8 + second].row[first]
                                 : lanes[matrix * 8 + first].row[second];
      }
      lanes[i].out[matrix] = cells[0] | cells[1] << 16;
    }
  }
}

void ApplyTranspose(Lane* lanes) {
  for (int i = 0; i < kLanes; ++i) {
    uint32_t cells[2];
    for (int half = 0; half < 2; ++half) {
      const int row = i % 4 * 2 + half, column = i / 4;
      const uint32_t word = lanes[row * 4 + column / 2].in[0];
      cells[half] = column % 2 != 0 ? word >> 16 : word & 0xffffu;
    }
    lanes[i].out[0] = cells[0] | cells[1] << 16;
  }
}

}  // namespace penstock::cuda::emulator
