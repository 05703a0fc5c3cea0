#pragma once

// Rows as levels of a normal distribution. The arithmetic of kernels/cpu/kv_levels.h; the results
// must be equal bit for bit.

#include "kernels/cpu/kv_quant.h"
#include "kernels/cuda/device/device.cuh"

namespace penstock::cuda {

// The index of the magnitude for an element of this magnitude.
template <int kBits>
PENSTOCK_DEVICE uint32_t LevelIndex(float magnitude, float scale) {
  constexpr NormalLevels<kBits> kLevels;
  uint32_t index = 0;
  PENSTOCK_UNROLL
  for (int i = 0; i < (1 << (kBits - 1)) - 1; ++i) {
    if (magnitude > Multiply(kLevels.bound[i], scale)) index = static_cast<uint32_t>(i + 1);
  }
  return index;
}
template <int kBits>
PENSTOCK_DEVICE float LevelOf(float magnitude, float scale) {
  constexpr NormalLevels<kBits> kLevels;
  float level = kLevels.magnitude[0];
  PENSTOCK_UNROLL
  for (int i = 0; i < (1 << (kBits - 1)) - 1; ++i) {
    if (magnitude > Multiply(kLevels.bound[i], scale)) level = kLevels.magnitude[i + 1];
  }
  return level;
}

// Fits the scale of a row, of which each lane has the elements that are terms of one part of the
// row's sums. There are half as many parts as lanes: where two sums are needed, each half of the
// warp adds up one.
template <int kDim>
struct LevelFit {
  static constexpr int kTerms = kDim / kLevelParts;
  float magnitude[kTerms];
  int lane;

  // Lane l has elements [l * kElements, (l + 1) * kElements) of x.
  template <int kElements>
  PENSTOCK_DEVICE LevelFit(const float (&x)[kElements], int own_lane) : lane(own_lane) {
    const int part = lane % kLevelParts;
    PENSTOCK_UNROLL
    for (int term = 0; term < kTerms; ++term) {
      const int from = (term * kLevelParts + part) / kElements;
      PENSTOCK_UNROLL
      for (int i = 0; i < kElements; ++i) {
        const float there = fabsf(Shuffle(x[i], from));
        if (part % kElements == i) magnitude[term] = there;
      }
    }
  }

  // The sum of the parts of this half of the warp, in ascending order.
  PENSTOCK_DEVICE double SumOfParts(double part) const {
    double sum = 0;
    PENSTOCK_UNROLL
    for (int k = 0; k < kLevelParts; ++k) {
      sum = Add(sum, Shuffle(part, (lane & kLevelParts) + k));
    }
    return sum;
  }

  PENSTOCK_DEVICE float RootMeanSquare() const {
    double part = 0;
    PENSTOCK_UNROLL
    for (int term = 0; term < kTerms; ++term) {
      part = Add(part, Multiply(double{magnitude[term]}, double{magnitude[term]}));
    }
    return static_cast<float>(SquareRoot(Divide(SumOfParts(part), double{kDim})));
  }

  // The scale whose product with the levels under `scale` is nearest to the row.
  template <int kBits>
  PENSTOCK_DEVICE float BestScale(float scale) const {
    const bool squares = lane >= kLevelParts;
    double part = 0;
    PENSTOCK_UNROLL
    for (int term = 0; term < kTerms; ++term) {
      const float level = LevelOf<kBits>(magnitude[term], scale);
      part = Add(part, Multiply(double{squares ? level : magnitude[term]}, double{level}));
    }
    const double sum = SumOfParts(part);
    return static_cast<float>(Divide(Shuffle(sum, 0), Shuffle(sum, kLevelParts)));
  }

  // The scale as bf16.
  template <int kBits>
  PENSTOCK_DEVICE uint32_t Scale() const {
    float scale = RootMeanSquare();
    PENSTOCK_NO_UNROLL
    for (int round = 0; round < kLevelRounds; ++round) scale = BestScale<kBits>(scale);
    return RoundBf16(scale);
  }
};

// The levels of a row as bf16: four magnitudes, or two magnitudes of either sign, whose codes are
// those of 3 bits without the sign, and those of 2 bits.
template <int kBits>
struct ScaledLevels {
  uint32_t low, high;  // codes 0 and 1, 2 and 3

  PENSTOCK_DEVICE explicit ScaledLevels(uint32_t scale_bits) {
    constexpr NormalLevels<kBits> kLevels;
    const float scale = WidenBf16(scale_bits);
    low = PackBf16(Multiply(kLevels.magnitude[0], scale), Multiply(kLevels.magnitude[1], scale));
    if constexpr (kBits == 2) {
      high = low | 0x80008000u;
    } else {
      high = PackBf16(Multiply(kLevels.magnitude[2], scale), Multiply(kLevels.magnitude[3], scale));
    }
  }

  // The levels of four codes, one in the low bits of each byte.
  PENSTOCK_DEVICE void Decode4(uint32_t codes, uint32_t* to) const {
    // Code c selects bytes 2 * c and 2 * c + 1.
    const uint32_t bytes = (codes & 0x03030303u) * 0x22u + 0x10101010u;
    to[0] = Permute(low, high, bytes & 0xffffu);
    to[1] = Permute(low, high, bytes >> 16);
  }
};

// Gives eight elements their signs, one in each bit.
PENSTOCK_DEVICE void SetSigns(uint32_t signs, Words4& elements) {
  PENSTOCK_UNROLL
  for (int w = 0; w < 4; ++w) {
    elements.word[w] |= (signs << (15 - 2 * w) & 0x8000u) | (signs << (30 - 2 * w) & 0x80000000u);
  }
}

}  // namespace penstock::cuda
