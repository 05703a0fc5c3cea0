#pragma once

// What the loops of KvQuantOps share: conversions, and the rotation of rows. Only kv_quant_<isa>.cc
// include this file, each with its own compiler flags and PENSTOCK_QUANT_LANES. Everything is in an
// unnamed namespace, so that the linker can never pick a function compiled for a newer machine for
// an older one.

#include <cstddef>
#include <utility>

#include "kernels/cpu/kv_quant.h"

// The compiler keeps arrays of registers in registers only if it unrolls their loops early.
#if defined(__clang__)
#define PENSTOCK_UNROLL_LANES _Pragma("unroll")
#else
#define PENSTOCK_UNROLL_LANES _Pragma("GCC unroll 32")
#endif

namespace penstock::simd {
namespace {

constexpr int kLanes = PENSTOCK_QUANT_LANES;
typedef float FloatLanes __attribute__((vector_size(4 * kLanes)));
typedef int32_t IntLanes __attribute__((vector_size(4 * kLanes)));
typedef uint32_t WordLanes __attribute__((vector_size(4 * kLanes)));
typedef int16_t ShortLanes __attribute__((vector_size(2 * kLanes)));
typedef uint16_t HalfLanes __attribute__((vector_size(2 * kLanes)));
typedef uint8_t ByteLanes __attribute__((vector_size(kLanes)));

inline uint32_t BitsOf(float x) {
  uint32_t bits;
  __builtin_memcpy(&bits, &x, sizeof(bits));
  return bits;
}
inline float FloatOf(uint32_t bits) {
  float x;
  __builtin_memcpy(&x, &bits, sizeof(x));
  return x;
}
inline float Widen(uint16_t bits) { return FloatOf(static_cast<uint32_t>(bits) << 16); }
// Rounds to nearest, ties to even. x is not NaN.
inline uint16_t Round(float x) {
  const uint32_t bits = BitsOf(x);
  return static_cast<uint16_t>((bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16);
}
template <int kFixed>
inline int Dims(int dims) {
  return kFixed == 0 ? dims : kFixed;
}

// Calls run<D>() with the common sizes as compile-time constants.
#define PENSTOCK_FOR_DIMS(function, ...) \
  switch (dims) {                        \
    case 64:                             \
      return function<64>(__VA_ARGS__);  \
    case 128:                            \
      return function<128>(__VA_ARGS__); \
    default:                             \
      return function<0>(__VA_ARGS__);   \
  }

// One butterfly stage of the fast Walsh-Hadamard transform: x[i ^ kHalf] + x[i], minus for lanes
// whose index has the bit kHalf.
template <int kHalf, class T, class Lanes, std::size_t... kLane>
inline Lanes Butterfly(Lanes x, std::index_sequence<kLane...>) {
  const Lanes sign = {static_cast<T>((kLane & kHalf) != 0 ? -1 : 1)...};
  return __builtin_shufflevector(x, x, (kLane ^ kHalf)...) + x * sign;
}

// All butterfly stages whose partners are in the same register, in ascending order.
template <class T, class Lanes>
inline Lanes InnerStages(Lanes x) {
  constexpr std::make_index_sequence<kLanes> kAll;
  x = Butterfly<1, T>(x, kAll);
  x = Butterfly<2, T>(x, kAll);
  if constexpr (kLanes >= 8) x = Butterfly<4, T>(x, kAll);
  if constexpr (kLanes >= 16) x = Butterfly<8, T>(x, kAll);
  return x;
}

// All butterfly stages of one block in kCount registers.
template <class T, class Lanes, int kCount>
inline void HadamardOfRegisters(Lanes (&x)[kCount]) {
  PENSTOCK_UNROLL_LANES
  for (int i = 0; i < kCount; ++i) x[i] = InnerStages<T>(x[i]);
  PENSTOCK_UNROLL_LANES
  for (int half = 1; half < kCount; half *= 2) {
    PENSTOCK_UNROLL_LANES
    for (int i = 0; i < kCount; ++i) {
      if ((i & half) != 0) continue;
      const Lanes a = x[i], b = x[i + half];
      x[i] = a + b;
      x[i + half] = a - b;
    }
  }
}

// The fast Walsh-Hadamard transform in place, in blocks of `order` (16 .. 128), unnormalised,
// stages in ascending order.
template <class T, class Lanes>
inline void Hadamard(T* x, int dims, int order) {
  for (int i = 0; i < dims; i += kLanes) {
    Lanes lanes;
    __builtin_memcpy(&lanes, x + i, sizeof(lanes));
    lanes = InnerStages<T>(lanes);
    __builtin_memcpy(x + i, &lanes, sizeof(lanes));
  }
  for (int half = kLanes; half < order; half *= 2) {
    for (int first = 0; first < dims; first += 2 * half) {
      for (int i = first; i < first + half; ++i) {
        const T a = x[i], b = x[i + half];
        x[i] = static_cast<T>(a + b);
        x[i + half] = static_cast<T>(a - b);
      }
    }
  }
}

// 1 / sqrt(order), rounded in the same way on every instruction set.
inline float Normaliser(int order) {
  return order == 16 ? 0.25f : order == 32 ? 0.176776695f : order == 64 ? 0.125f : 0.0883883476f;
}

// Normalised transform of a row of kFixed elements (one block).
template <int kFixed>
inline void RotateRow(const Bf16* values, float normaliser, float* rotated) {
  constexpr int kCount = kFixed / kLanes;
  FloatLanes x[kCount];
  PENSTOCK_UNROLL_LANES
  for (int k = 0; k < kCount; ++k) {
    HalfLanes halves;
    __builtin_memcpy(&halves, values + k * kLanes, sizeof(halves));
    const WordLanes bits = __builtin_convertvector(halves, WordLanes) << 16;
    __builtin_memcpy(&x[k], &bits, sizeof(bits));
  }
  HadamardOfRegisters<float>(x);
  PENSTOCK_UNROLL_LANES
  for (int k = 0; k < kCount; ++k) {
    x[k] *= normaliser;
    __builtin_memcpy(rotated + k * kLanes, &x[k], sizeof(x[k]));
  }
}

void Rotate(float* values, int64_t rows, int dims) {
  const int order = HadamardOrder(dims);
  const float normaliser = Normaliser(order);
  for (int64_t r = 0; r < rows; ++r, values += dims) {
    Hadamard<float, FloatLanes>(values, dims, order);
    for (int i = 0; i < dims; ++i) values[i] *= normaliser;
  }
}

}  // namespace
}  // namespace penstock::simd
