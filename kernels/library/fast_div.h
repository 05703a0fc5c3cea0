#pragma once

#include <cstdint>

// Takes the place of flashinfer/fastdiv.cuh, which needs a newer CCCL than CUDA 13.0's: this file
// is included first, and has that file's include guard, names and members. The method is that of
// Granlund and Montgomery, "Division by Invariant Integers using Multiplication", figure 4.1.
#ifdef FLASHINFER_FASTDIV_CUH_
#error "fast_div.h comes before FlashInfer's headers"
#endif
#define FLASHINFER_FASTDIV_CUH_

#ifdef __CUDACC__
#define PENSTOCK_FAST_DIV __host__ __device__ __forceinline__
#else
#define PENSTOCK_FAST_DIV inline
#endif

namespace flashinfer {

// A divisor whose quotients take a multiplication and two shifts.
struct uint_fastdiv {
  uint32_t d = 0, m = 0, s = 0, a = 0;

  PENSTOCK_FAST_DIV uint_fastdiv() {}
  // Converts to and from an integer, as FlashInfer's kernels expect.
  // NOLINTNEXTLINE(google-explicit-constructor)
  uint_fastdiv(uint32_t divisor) : d(divisor) {
    uint32_t log2 = 0;  // rounded up
    while (log2 < 32 && (uint64_t{1} << log2) < d) ++log2;
    m = d <= 1 ? 0 : static_cast<uint32_t>((((uint64_t{1} << log2) - d) << 32) / d + 1);
    s = log2 > 1 ? log2 - 1 : 0;
    a = log2 > 0 ? 1 : 0;
  }

  // NOLINTNEXTLINE(google-explicit-constructor)
  PENSTOCK_FAST_DIV operator unsigned int() const { return d; }
  PENSTOCK_FAST_DIV uint32_t Divide(uint32_t n) const {
#ifdef __CUDA_ARCH__
    const uint32_t high = __umulhi(m, n);
#else
    const auto high = static_cast<uint32_t>((uint64_t{m} * n) >> 32);
#endif
    return (high + ((n - high) >> a)) >> s;
  }
  PENSTOCK_FAST_DIV void divmod(uint32_t n, uint32_t& quotient, uint32_t& remainder) const {
    quotient = Divide(n);
    remainder = n - quotient * d;
  }
};

PENSTOCK_FAST_DIV uint32_t operator/(uint32_t n, const uint_fastdiv& divisor) {
  return divisor.Divide(n);
}
PENSTOCK_FAST_DIV uint32_t operator%(uint32_t n, const uint_fastdiv& divisor) {
  return n - divisor.Divide(n) * divisor;
}

}  // namespace flashinfer

#undef PENSTOCK_FAST_DIV
