#include "tests/cuda/emulator/arithmetic.h"

#include <cmath>
#include <cstring>

#include "tests/cuda/emulator/emulator.h"

namespace penstock::cuda::emulator {
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

namespace {

// The operands and the sums of one mma.m16n8k16, by row and column.
struct MmaTile {
  uint16_t a[16 * 16], b[16 * 8];  // bf16 or f16
  float sums[16][8];
};
using EightFloats = float __attribute__((vector_size(32)));

// Most of the time of a product. The compiler must not fuse its multiplications and additions, so
// AVX2 gives the bits that the other version gives.
#if defined(__x86_64__)
__attribute__((target_clones("avx2", "default")))
#endif
void MultiplyTile(MmaTile& tile, bool bf16) {
  float a[16 * 16], b[16 * 8];
  if (bf16) {
    for (int i = 0; i < 256; ++i) a[i] = BitsToFloat(uint32_t{tile.a[i]} << 16);
    for (int i = 0; i < 128; ++i) b[i] = BitsToFloat(uint32_t{tile.b[i]} << 16);
  } else {
    for (int i = 0; i < 256; ++i) a[i] = HalfToFloat(tile.a[i]);
    for (int i = 0; i < 128; ++i) b[i] = HalfToFloat(tile.b[i]);
  }
  EightFloats rows[16];
  std::memcpy(rows, b, sizeof(rows));
  for (int row = 0; row < 16; ++row) {
    EightFloats sums;
    std::memcpy(&sums, tile.sums[row], sizeof(sums));
    for (int k = 0; k < 16; ++k) sums += a[row * 16 + k] * rows[k];
    std::memcpy(tile.sums[row], &sums, sizeof(sums));
  }
}

}  // namespace

// Fragments as in the PTX manual, section "Matrix Fragments for mma.m16n8k16".
void ApplyMma(Lane* lanes, bool bf16) {
  MmaTile tile;
  for (int i = 0; i < kLanes; ++i) {
    const int group = i / 4, column = i % 4 * 2;
    for (int r = 0; r < 4; ++r) {
      std::memcpy(&tile.a[(group + r % 2 * 8) * 16 + column + r / 2 * 8], &lanes[i].in[r], 4);
    }
    for (int r = 0; r < 2; ++r) {
      tile.b[(column + r * 8) * 8 + group] = static_cast<uint16_t>(lanes[i].in[4 + r]);
      tile.b[(column + 1 + r * 8) * 8 + group] = static_cast<uint16_t>(lanes[i].in[4 + r] >> 16);
      std::memcpy(&tile.sums[group + r * 8][column], lanes[i].accumulator + r * 2, 8);
    }
  }
  MultiplyTile(tile, bf16);
  for (int i = 0; i < kLanes; ++i) {
    for (int r = 0; r < 2; ++r) {
      std::memcpy(lanes[i].accumulator + r * 2, &tile.sums[i / 4 + r * 8][i % 4 * 2], 8);
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
