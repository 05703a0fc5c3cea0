#pragma once

#include <cstdint>

namespace penstock::cuda::emulator {

constexpr int kLanes = 32;

// The registers with which one thread takes part in what its warp does together.
struct Lane {
  uint32_t in[6] = {};   // operands
  uint16_t row[8] = {};  // of ldmatrix: read on arrival, because nothing orders a later read
  uint32_t out[4] = {};  // result
  float* accumulator = nullptr;
};

// These functions compute the results of instructions, and take most of the time of an emulated
// kernel. They are compiled without sanitizers, because they use no memory that a kernel addresses.

float HalfToFloat(uint32_t bits);
uint32_t FloatToHalf(float x);  // rounds to even; NaN is 0x7fff
uint32_t FloatToBf16(float x);  // the same
float E4m3ToFloat(uint32_t code);
uint32_t FloatToE4m3(float x);  // rounds to even; magnitudes above 448 become 448

// mma.m16n8k16: each lane's four accumulators grow by their products, added in the order of k.
void ApplyMma(Lane* lanes, bool bf16);
// ldmatrix.x4, with .trans if `transposed`.
void ApplyLoad(Lane* lanes, bool transposed);
// movmatrix.
void ApplyTranspose(Lane* lanes);

}  // namespace penstock::cuda::emulator
