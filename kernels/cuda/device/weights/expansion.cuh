#pragma once

// From the codes of a weight to the operands of an mma (kernels/cuda/weight_codes.h).
//
// This room has the kernels for quantised weights. It may use kernels/cuda and kernels/cuda/device.

#include "kernels/cuda/device/device.cuh"
#include "kernels/cuda/quantised_gemm.h"

namespace penstock::cuda {

// How codes become bf16. All of them have the same result; kInt4Pairs does it for two 4-bit codes
// at once, in fewer instructions, where scales are pairs of bf16 and there are no offsets.
enum class Expansion { kInt8, kInt4, kInt4Pairs, kE4m3, kE2m1 };

constexpr float kTwoTo23 = 8388608.0f;  // an integer below 2^23, in the mantissa's place, plus this

// What a group has for the two outputs of a lane, `lane / 4` and 8 more.
struct GroupValues {
  uint32_t scale[2], zero[2];
  float offset[2];
};

// Reads what the group has that a lane's inputs of step `step` of a block of 32 inputs are in. In
// the order of this project's kernels those of both steps are 8 inputs side by side, so they share
// a group.
template <Expansion kExpansion, InputOrder kOrder>
PENSTOCK_DEVICE GroupValues ReadGroup(const ChunkLayout& layout, const uint8_t* chunk, int block,
                                      int step, int lane) {
  GroupValues values{};
  const int half = kOrder == InputOrder::kNatural ? step : lane % 4 / 2;
  const int group = (2 * block + half) >> layout.group_halves_log2;
  PENSTOCK_UNROLL
  for (int r = 0; r < 2; ++r) {
    const int index = group * kCodePanel + lane / 4 + 8 * r;
    if constexpr (kExpansion == Expansion::kE2m1) {
      values.scale[r] = reinterpret_cast<const uint16_t*>(chunk)[index];
      continue;
    }
    values.scale[r] = reinterpret_cast<const uint32_t*>(chunk)[index];
    values.zero[r] = layout.zero;
    if (layout.zeros) values.zero[r] = chunk[layout.zeros_at + index];
    values.offset[r] = 0;
    if (layout.offsets) {
      values.offset[r] = reinterpret_cast<const float*>(chunk + layout.offsets_at)[index];
    }
  }
  return values;
}

// True if the group of a block is not that of the block before.
PENSTOCK_DEVICE bool BeginsGroup(const ChunkLayout& layout, int block) {
  return (2 * block & ((1 << layout.group_halves_log2) - 1)) == 0;
}
// True if the second step of a block has another group than the first.
template <Expansion kExpansion, InputOrder kOrder>
PENSTOCK_DEVICE bool StepsHaveGroups(const ChunkLayout& layout) {
  return kOrder == InputOrder::kNatural && kExpansion == Expansion::kInt8 &&
         layout.group_halves_log2 == 0;
}

// Expands the codes of a lane's two outputs. Operand i of the mma's four belongs to output i % 2.
// kWords are the words of codes of a step.
template <Expansion kExpansion>
struct Expander {
  static constexpr int kWords = kExpansion == Expansion::kInt4 ? 1 : 2;

  float scale[2], offset[2], minus_zero[2];

  PENSTOCK_DEVICE void Use(const GroupValues& group) {
    PENSTOCK_UNROLL
    for (int r = 0; r < 2; ++r) {
      scale[r] = BitsToFloat(group.scale[r]);
      offset[r] = group.offset[r];
      minus_zero[r] = -(kTwoTo23 + static_cast<float>(group.zero[r]));
    }
  }

  // The number that code `e` of operand `i` stands for.
  PENSTOCK_DEVICE float Number(const uint32_t (&words)[kWords], int i, int e) const {
    if constexpr (kExpansion == Expansion::kInt4) {
      const uint32_t code = words[0] >> (4 * i + 16 * e) & 0xfu;
      return Add(BitsToFloat(code | 0x4b000000u), minus_zero[i % 2]);
    } else {
      const int byte = i % 2 * 2 + e;
      return Add(BitsToFloat(Permute(words[i / 2], 0x4b000000u, 0x7440u | byte)),
                 minus_zero[i % 2]);
    }
  }

  PENSTOCK_DEVICE void Expand(const uint32_t (&words)[kWords], uint32_t (&operands)[4]) const {
    PENSTOCK_UNROLL
    for (int i = 0; i < 4; ++i) {
      const int r = i % 2;
      operands[i] = PackBf16(MultiplyAdd(scale[r], Number(words, i, 0), offset[r]),
                             MultiplyAdd(scale[r], Number(words, i, 1), offset[r]));
    }
  }
};

template <>
struct Expander<Expansion::kE4m3> {
  static constexpr int kWords = 2;

  float scale[2];

  PENSTOCK_DEVICE void Use(const GroupValues& group) {
    scale[0] = BitsToFloat(group.scale[0]);
    scale[1] = BitsToFloat(group.scale[1]);
  }

  PENSTOCK_DEVICE void Expand(const uint32_t (&words)[kWords], uint32_t (&operands)[4]) const {
    PENSTOCK_UNROLL
    for (int i = 0; i < 4; ++i) {
      const uint32_t halves = E4m3ToHalves(words[i / 2] >> (i % 2 * 16) & 0xffffu);
      operands[i] = PackBf16(Multiply(scale[i % 2], LowHalf(halves)),
                             Multiply(scale[i % 2], HighHalf(halves)));
    }
  }
};

// A scale is the sum of `high` and `low`. An integer of 4 bits times `low` is a bf16 without
// rounding, so scale * integer is rounded once, by the last addition.
template <>
struct Expander<Expansion::kInt4Pairs> {
  static constexpr int kWords = 1;
  static constexpr uint32_t kOnes = 0x3f803f80u;

  uint32_t high[2], low[2], minus_zero[2];

  PENSTOCK_DEVICE void Use(const GroupValues& group) {
    PENSTOCK_UNROLL
    for (int r = 0; r < 2; ++r) {
      high[r] = Permute(group.scale[r], 0, 0x1010u);
      low[r] = Permute(group.scale[r], 0, 0x3232u);
      minus_zero[r] = (0xc300u | group.zero[r]) * 0x00010001u;  // -(128 + zero), twice
    }
  }

  PENSTOCK_DEVICE void Expand(const uint32_t (&words)[kWords], uint32_t (&operands)[4]) const {
    PENSTOCK_UNROLL
    for (int i = 0; i < 4; ++i) {
      const int r = i % 2;
      const uint32_t codes = NibblesToBf16(words[0] >> (4 * i));  // 128 + code
      const uint32_t number = MultiplyAddBf16(codes, kOnes, minus_zero[r]);
      const uint32_t part = MultiplyBf16(number, low[r]);
      operands[i] = MultiplyAddBf16(number, high[r], part);
    }
  }
};

// The bits of a code, in a bf16's lowest bits of the exponent and highest one of the mantissa, are
// the number times 2^-126. Its products with a bf16 are rounded once.
template <>
struct Expander<Expansion::kE2m1> {
  static constexpr int kWords = 1;
  static constexpr uint32_t kTwoTo127 = 0x7f007f00u;

  uint32_t scale[2];

  PENSTOCK_DEVICE void Use(const GroupValues& group) {
    scale[0] = group.scale[0] * 0x00010001u;
    scale[1] = group.scale[1] * 0x00010001u;
  }

  PENSTOCK_DEVICE void Expand(const uint32_t (&words)[kWords], uint32_t (&operands)[4]) const {
    PENSTOCK_UNROLL
    for (int i = 0; i < 4; ++i) {
      const uint32_t codes = words[0] >> (4 * i);
      const uint32_t tiny = (codes & 0x00080008u) << 12 | (codes & 0x00070007u) << 6;
      const uint32_t number = MultiplyBf16(tiny, kTwoTo127);
      operands[i] = MultiplyBf16(number, scale[i % 2]);
    }
  }
};

// The bytes of the largest chunk: its codes, and scales, zero points and offsets of four groups, or
// of eight with integers of 8 bits.
constexpr int ChunkBytesMax(Expansion expansion) {
  const bool half = expansion == Expansion::kInt4 || expansion == Expansion::kInt4Pairs ||
                    expansion == Expansion::kE2m1;
  const int groups = expansion == Expansion::kInt8 ? 8 : 4;
  return kCodePanel * kCodeInputs / (half ? 2 : 1) + groups * kCodePanel * 9;
}

// The words of codes that a lane uses in step `t` of a block of 32 inputs; `codes` are those of the
// chunk.
template <Expansion kExpansion>
struct StepCodes {
  static constexpr int kWords = Expander<kExpansion>::kWords;
  static constexpr int kChunkMax = ChunkBytesMax(kExpansion);

  uint32_t words[2][kWords];

  PENSTOCK_DEVICE void Read(const uint8_t* codes, int block, int lane) {
    if constexpr (kWords == 2) {
      const auto all = *reinterpret_cast<const Words4*>(codes + block * 512 + lane * 16);
      words[0][0] = all.word[0];
      words[0][1] = all.word[1];
      words[1][0] = all.word[2];
      words[1][1] = all.word[3];
    } else {
      const auto all =
          *reinterpret_cast<const Words2*>(codes + block / 2 * 512 + lane * 16 + block % 2 * 8);
      words[0][0] = all.word[0];
      words[1][0] = all.word[1];
    }
  }
};

}  // namespace penstock::cuda
