// Compiled with -mavx512{f,bw,dq,vl,bf16}; called only on machines that support all of them.

#include "kernels/cpu/simd_avx512.h"

namespace penstock::simd {
namespace {

// Avx512 with vdpbf16ps: it adds two products to each accumulator. Activations are rounded to bf16
// once, here.
struct Avx512Bf16 : Avx512 {
  static void StoreActivations(void* base, int index, Reg a) {
    const auto rounded = reinterpret_cast<__m256i>(_mm512_cvtneps_pbh(a));
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(static_cast<Bf16*>(base) + index), rounded);
  }
};

// `a` holds pair p of row r at a[p * pair_step + r * row_step]. The steps are compile-time
// constants, so they become displacements of the broadcasting loads. The tiles of several panels
// share these loads.
template <int kPanels, int kRows, int kRowStep, int kPairStep>
void MultiplyTiles(int64_t pairs, const Bf16* a, const TileProduct* products) {
  __m512 sums[kPanels][kRows][2];
  const Bf16* b[kPanels];
  PENSTOCK_UNROLL
  for (int n = 0; n < kPanels; ++n) {
    b[n] = products[n].weights;
    LoadTile<kRows>(products[n].tile, sums[n]);
  }
  for (int64_t p = 0; p < pairs; ++p, a += kPairStep) {
    PENSTOCK_UNROLL
    for (int n = 0; n < kPanels; ++n, b[n - 1] += 2 * kTileColumns) {
      Prefetch(b[n]);
      const auto left = reinterpret_cast<__m512bh>(_mm512_loadu_si512(b[n]));
      const auto right = reinterpret_cast<__m512bh>(_mm512_loadu_si512(b[n] + 32));
      PENSTOCK_UNROLL
      for (int r = 0; r < kRows; ++r) {
        int32_t pair;
        __builtin_memcpy(&pair, a + r * kRowStep, sizeof(pair));
        const auto x = reinterpret_cast<__m512bh>(_mm512_set1_epi32(pair));
        sums[n][r][0] = _mm512_dpbf16_ps(sums[n][r][0], x, left);
        sums[n][r][1] = _mm512_dpbf16_ps(sums[n][r][1], x, right);
      }
    }
  }
  PENSTOCK_UNROLL
  for (int n = 0; n < kPanels; ++n) StoreTile<kRows>(sums[n], products[n].tile);
}

struct Blocks {
  template <int kRows>
  static void Run(int64_t pairs, const Bf16* a, const Bf16* b, float* tile) {
    const TileProduct product{b, tile};
    MultiplyTiles<1, kRows, 2, 2 * kRows>(pairs, a, &product);
  }
};
template <int kPanels>
struct SideBySide {
  template <int kRows>
  static void Run(int64_t pairs, const Bf16* a, const TileProduct* products) {
    MultiplyTiles<kPanels, kRows, 2, 2 * kRows>(pairs, a, products);
  }
};
struct RowMajor {
  template <int kRows>
  static void Run(const Bf16* a, const Bf16* b, float* tile) {
    const TileProduct product{b, tile};
    MultiplyTiles<1, kRows, kKvTile, 2>(kKvTile / 2, a, &product);
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
  template <int kPanels>
  static void Panels(int rows, int64_t pairs, const void* a, const TileProduct* products) {
    ForRows<SideBySide<kPanels>, kPanels == 4 ? kRowsByFour : kRowsByTwo>(
        rows, pairs, static_cast<const Bf16*>(a), products);
  }
  static void Weights(int rows, const void* a, const Bf16* b, float* tile) {
    ForRows<RowMajor>(rows, static_cast<const Bf16*>(a), b, tile);
  }
};

}  // namespace

extern const SimdOps kAvx512Bf16Ops = MakeSimdOps<Avx512Bf16, Multiply>();

}  // namespace penstock::simd
