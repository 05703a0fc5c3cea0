// Compiled with -mavx512{f,bw,dq,vl}; called only on machines that support all of them.

#include "kernels/cpu/simd_avx512.h"

namespace penstock::simd {
namespace {

// `a` holds pair p of row r at a[p * pair_step + r * row_step]. The steps are compile-time
// constants, so they become displacements of the broadcasting loads. The tiles of several panels
// share these loads.
template <int kPanels, int kRows, int kRowStep, int kPairStep>
void MultiplyTiles(int64_t pairs, const float* a, const TileProduct* products) {
  __m512 sums[kPanels][kRows][2];
  const Bf16* b[kPanels];
  PENSTOCK_UNROLL
  for (int n = 0; n < kPanels; ++n) {
    b[n] = products[n].weights;
    LoadTile<kRows>(products[n].tile, sums[n]);
  }
  const __m512i upper = _mm512_set1_epi32(static_cast<int>(0xffff0000u));
  for (int64_t p = 0; p < pairs; ++p, a += kPairStep) {
    PENSTOCK_UNROLL
    for (int n = 0; n < kPanels; ++n, b[n - 1] += 2 * kTileColumns) {
      Prefetch(b[n]);
      const __m512i both[2] = {_mm512_loadu_si512(b[n]), _mm512_loadu_si512(b[n] + 32)};
      const __m512 even[2] = {_mm512_castsi512_ps(_mm512_slli_epi32(both[0], 16)),
                              _mm512_castsi512_ps(_mm512_slli_epi32(both[1], 16))};
      PENSTOCK_UNROLL
      for (int r = 0; r < kRows; ++r) {
        const __m512 x = _mm512_set1_ps(a[r * kRowStep]);
        PENSTOCK_UNROLL
        for (int v = 0; v < 2; ++v) sums[n][r][v] = _mm512_fmadd_ps(x, even[v], sums[n][r][v]);
      }
      const __m512 odd[2] = {_mm512_castsi512_ps(_mm512_and_si512(both[0], upper)),
                             _mm512_castsi512_ps(_mm512_and_si512(both[1], upper))};
      PENSTOCK_UNROLL
      for (int r = 0; r < kRows; ++r) {
        const __m512 x = _mm512_set1_ps(a[r * kRowStep + 1]);
        PENSTOCK_UNROLL
        for (int v = 0; v < 2; ++v) sums[n][r][v] = _mm512_fmadd_ps(x, odd[v], sums[n][r][v]);
      }
    }
  }
  PENSTOCK_UNROLL
  for (int n = 0; n < kPanels; ++n) StoreTile<kRows>(sums[n], products[n].tile);
}

struct Blocks {
  template <int kRows>
  static void Run(int64_t pairs, const float* a, const Bf16* b, float* tile) {
    const TileProduct product{b, tile};
    MultiplyTiles<1, kRows, 2, 2 * kRows>(pairs, a, &product);
  }
};
template <int kPanels>
struct SideBySide {
  template <int kRows>
  static void Run(int64_t pairs, const float* a, const TileProduct* products) {
    MultiplyTiles<kPanels, kRows, 2, 2 * kRows>(pairs, a, products);
  }
};
struct RowMajor {
  template <int kRows>
  static void Run(const float* a, const Bf16* b, float* tile) {
    const TileProduct product{b, tile};
    MultiplyTiles<1, kRows, kKvTile, 2>(kKvTile / 2, a, &product);
  }
};

struct Multiply {
  static constexpr int kActivationBytes = sizeof(float);
  static constexpr auto PackRows = PackFloatRows<Avx512>;
  static void Tile(int rows, int64_t pairs, const void* a, const Bf16* b, float* tile) {
    ForRows<Blocks>(rows, pairs, static_cast<const float*>(a), b, tile);
  }
  template <int kPanels>
  static void Panels(int rows, int64_t pairs, const void* a, const TileProduct* products) {
    ForRows<SideBySide<kPanels>, kPanels == 4 ? kRowsByFour : kRowsByTwo>(
        rows, pairs, static_cast<const float*>(a), products);
  }
  static void Weights(int rows, const void* a, const Bf16* b, float* tile) {
    ForRows<RowMajor>(rows, static_cast<const float*>(a), b, tile);
  }
};

}  // namespace

extern const SimdOps kAvx512Ops = MakeSimdOps<Avx512, Multiply>();

}  // namespace penstock::simd
