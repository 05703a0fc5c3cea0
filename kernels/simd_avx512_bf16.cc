// Compiled with -mavx512{f,bw,dq,vl,bf16}; reached only where the machine has them.

#include "kernels/simd_avx512.h"

namespace penstock::simd {
namespace {

// vdpbf16ps rounds activations to bf16 once, here, and adds two products to each accumulator.
struct Avx512Bf16 : Avx512 {
  static void StoreActivations(void* base, int index, Reg a) {
    const auto rounded = reinterpret_cast<__m256i>(_mm512_cvtneps_pbh(a));
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(static_cast<Bf16*>(base) + index), rounded);
  }
};

template <int kRows, int kRowStep, int kPairStep>
void MultiplyTile(int64_t pairs, const Bf16* a, const Bf16* b, float* tile) {
  __m512 sums[kRows][2];
  PENSTOCK_UNROLL
  for (int r = 0; r < kRows; ++r) {
    PENSTOCK_UNROLL
    for (int v = 0; v < 2; ++v) sums[r][v] = _mm512_loadu_ps(tile + r * kTileColumns + 16 * v);
  }
  for (int64_t p = 0; p < pairs; ++p, a += kPairStep, b += 2 * kTileColumns) {
    if (p % kPrefetchPairs<kRows> == 0) Prefetch<kPrefetchPairs<kRows>>(b);
    const auto left = reinterpret_cast<__m512bh>(_mm512_loadu_si512(b));
    const auto right = reinterpret_cast<__m512bh>(_mm512_loadu_si512(b + 32));
    PENSTOCK_UNROLL
    for (int r = 0; r < kRows; ++r) {
      int32_t pair;
      __builtin_memcpy(&pair, a + r * kRowStep, sizeof(pair));
      const auto x = reinterpret_cast<__m512bh>(_mm512_set1_epi32(pair));
      sums[r][0] = _mm512_dpbf16_ps(sums[r][0], x, left);
      sums[r][1] = _mm512_dpbf16_ps(sums[r][1], x, right);
    }
  }
  PENSTOCK_UNROLL
  for (int r = 0; r < kRows; ++r) {
    PENSTOCK_UNROLL
    for (int v = 0; v < 2; ++v) _mm512_storeu_ps(tile + r * kTileColumns + 16 * v, sums[r][v]);
  }
}

struct Blocks {
  template <int kRows>
  static void Run(int64_t pairs, const Bf16* a, const Bf16* b, float* tile) {
    MultiplyTile<kRows, 2, 2 * kRows>(pairs, a, b, tile);
  }
};
struct RowMajor {
  template <int kRows>
  static void Run(const Bf16* a, const Bf16* b, float* tile) {
    MultiplyTile<kRows, kKvTile, 2>(kKvTile / 2, a, b, tile);
  }
};

struct Multiply {
  static constexpr int kActivationBytes = sizeof(Bf16);

  static void PackRows(const float* input, int64_t stride, int rows, int64_t first, int64_t last,
                       void* packed) {
    auto* target = static_cast<Bf16*>(packed);
    alignas(64) Bf16 rounded[16];
    for (int r = 0; r < rows; ++r) {
      for (int64_t i = first; i < last; i += 16) {
        const int count = last - i < 16 ? static_cast<int>(last - i) : 16;
        Avx512Bf16::StoreActivations(rounded, 0, Avx512::LoadPart(input + r * stride + i, count));
        for (int j = 0; j < count; j += 2) {
          __builtin_memcpy(target + (i + j) * rows + 2 * r, rounded + j, 2 * sizeof(Bf16));
        }
      }
    }
  }
  static void Tile(int rows, int64_t pairs, const void* a, const Bf16* b, float* tile) {
    ForRows<Blocks>(rows, pairs, static_cast<const Bf16*>(a), b, tile);
  }
  static void Weights(int rows, const void* a, const Bf16* b, float* tile) {
    ForRows<RowMajor>(rows, static_cast<const Bf16*>(a), b, tile);
  }
};

}  // namespace

extern const SimdOps kAvx512Bf16Ops = MakeSimdOps<Avx512Bf16, Multiply>();

}  // namespace penstock::simd
