#pragma once

// The AVX-512 vector type, included only by simd_avx512*.cc (see simd_ops.h).

#include <immintrin.h>

#include "kernels/cpu/simd_ops.h"

namespace penstock::simd {
namespace {

// Prefetches the pair of weights that is used a fixed distance later. A product of few rows is
// limited by memory bandwidth, and the hardware prefetcher leaves a quarter of it unused. The
// prefetch goes to the second-level cache: a core can have fewer lines outstanding for the first
// level than keep the memory busy.
inline void Prefetch(const Bf16* weights) {
  constexpr int kAhead = 3072;
  const char* line = reinterpret_cast<const char*>(weights) + kAhead;
  _mm_prefetch(line, _MM_HINT_T1);
  _mm_prefetch(line + 64, _MM_HINT_T1);
}

template <int kRows>
inline void LoadTile(const float* tile, __m512 (&sums)[kRows][2]) {
  PENSTOCK_UNROLL
  for (int r = 0; r < kRows; ++r) {
    PENSTOCK_UNROLL
    for (int v = 0; v < 2; ++v) sums[r][v] = _mm512_loadu_ps(tile + r * kTileColumns + 16 * v);
  }
}

template <int kRows>
inline void StoreTile(const __m512 (&sums)[kRows][2], float* tile) {
  PENSTOCK_UNROLL
  for (int r = 0; r < kRows; ++r) {
    PENSTOCK_UNROLL
    for (int v = 0; v < 2; ++v) _mm512_storeu_ps(tile + r * kTileColumns + 16 * v, sums[r][v]);
  }
}

struct Avx512 {
  using Reg = __m512;
  static constexpr int kLanes = 16;

  static __mmask16 Mask(int count) { return static_cast<__mmask16>((1u << count) - 1); }
  static Reg Load(const float* p) { return _mm512_loadu_ps(p); }
  static Reg LoadPart(const float* p, int count) { return _mm512_maskz_loadu_ps(Mask(count), p); }
  static void Store(float* p, Reg a) { _mm512_storeu_ps(p, a); }
  static void StorePart(float* p, int count, Reg a) { _mm512_mask_storeu_ps(p, Mask(count), a); }
  static Reg Set(float x) { return _mm512_set1_ps(x); }
  static Reg Add(Reg a, Reg b) { return _mm512_add_ps(a, b); }
  static Reg Sub(Reg a, Reg b) { return _mm512_sub_ps(a, b); }
  static Reg Mul(Reg a, Reg b) { return _mm512_mul_ps(a, b); }
  static Reg Div(Reg a, Reg b) { return _mm512_div_ps(a, b); }
  static Reg Fma(Reg a, Reg b, Reg c) { return _mm512_fmadd_ps(a, b, c); }
  static Reg Max(Reg a, Reg b) { return _mm512_max_ps(a, b); }
  static Reg Min(Reg a, Reg b) { return _mm512_min_ps(a, b); }
  static Reg Round(Reg a) {
    return _mm512_roundscale_ps(a, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
  }
  static Reg TimesPowerOf2(Reg a, Reg n) { return _mm512_scalef_ps(a, n); }
  static Reg ZeroWhereLess(Reg a, Reg limit, Reg value) {
    return _mm512_maskz_mov_ps(_mm512_cmp_ps_mask(a, limit, _CMP_NLT_UQ), value);
  }
  static float Sum(Reg a) {
    __m256 half = _mm256_add_ps(_mm512_castps512_ps256(a), _mm512_extractf32x8_ps(a, 1));
    __m128 quarter = _mm_add_ps(_mm256_castps256_ps128(half), _mm256_extractf128_ps(half, 1));
    quarter = _mm_add_ps(quarter, _mm_movehl_ps(quarter, quarter));
    return _mm_cvtss_f32(_mm_add_ss(quarter, _mm_movehdup_ps(quarter)));
  }
  static float MaxLane(Reg a) {
    __m256 half = _mm256_max_ps(_mm512_castps512_ps256(a), _mm512_extractf32x8_ps(a, 1));
    __m128 quarter = _mm_max_ps(_mm256_castps256_ps128(half), _mm256_extractf128_ps(half, 1));
    quarter = _mm_max_ps(quarter, _mm_movehl_ps(quarter, quarter));
    return _mm_cvtss_f32(_mm_max_ss(quarter, _mm_movehdup_ps(quarter)));
  }
  static Reg LoadBf16(const Bf16* p) {
    const __m256i bits = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p));
    return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(bits), 16));
  }
  // Rounds in integer arithmetic and not by vcvtneps2bf16, which flushes denormals: pages then hold
  // the same bits whether or not the machine has that instruction.
  static void StoreBf16(Bf16* p, Reg a) {
    const __m512i bits = _mm512_castps_si512(a);
    const __m512i odd = _mm512_and_si512(_mm512_srli_epi32(bits, 16), _mm512_set1_epi32(1));
    const __m512i rounded =
        _mm512_add_epi32(bits, _mm512_add_epi32(odd, _mm512_set1_epi32(0x7fff)));
    const __m512i quiet = _mm512_or_si512(bits, _mm512_set1_epi32(0x400000));
    const __mmask16 nan = _mm512_cmp_ps_mask(a, a, _CMP_UNORD_Q);
    const __m512i high = _mm512_srli_epi32(_mm512_mask_mov_epi32(rounded, nan, quiet), 16);
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(p), _mm512_cvtepi32_epi16(high));
  }
  static void StoreActivations(void* base, int index, Reg a) {
    Store(static_cast<float*>(base) + index, a);
  }

  // 32 codes, each in the high byte of a lane.
  static __m512i E4m3Numbers(__m512i codes) {
    const __m512i bits = _mm512_and_si512(_mm512_srai_epi16(codes, 4),
                                          _mm512_set1_epi16(static_cast<int16_t>(0x87f0)));
    const __mmask32 subnormal = _mm512_testn_epi16_mask(bits, _mm512_set1_epi16(0x0780));
    const __m512i table =
        _mm512_castsi128_si512(_mm_loadu_si128(reinterpret_cast<const __m128i*>(kE4m3Subnormals)));
    const __m512i more = _mm512_mask_permutexvar_epi16(_mm512_set1_epi16(kE4m3Bias), subnormal,
                                                       _mm512_srli_epi16(bits, 4), table);
    return _mm512_add_epi16(bits, more);
  }
  static void ExpandE4m3(const std::byte* codes, int64_t words, Bf16* numbers) {
    constexpr int kAhead = 3072;  // as for Prefetch
    for (int64_t w = 0; w < words; ++w, codes += 4 * kTileColumns, numbers += 4 * kTileColumns) {
      PENSTOCK_UNROLL
      for (int half = 0; half < 2; ++half) {
        _mm_prefetch(reinterpret_cast<const char*>(codes) + kAhead + 64 * half, _MM_HINT_T1);
        const __m512i both = _mm512_loadu_si512(codes + 64 * half);
        _mm512_storeu_si512(numbers + 32 * half, E4m3Numbers(_mm512_slli_epi16(both, 8)));
        _mm512_storeu_si512(numbers + 2 * kTileColumns + 32 * half, E4m3Numbers(both));
      }
    }
  }

  // Transposes 16 rows of `count` pairs in four rounds; each round exchanges halves of groups twice
  // as wide.
  static void TransposePairs(const Bf16* const* rows, int64_t offset, int count, Bf16* target) {
    __m512i a[16], b[16];
    for (int i = 0; i < 16; ++i) a[i] = _mm512_maskz_loadu_epi32(Mask(count), rows[i] + offset);
    for (int i = 0; i < 16; i += 2) {
      b[i] = _mm512_unpacklo_epi32(a[i], a[i + 1]);
      b[i + 1] = _mm512_unpackhi_epi32(a[i], a[i + 1]);
    }
    for (int i = 0; i < 16; i += 4) {
      a[i] = _mm512_unpacklo_epi64(b[i], b[i + 2]);
      a[i + 1] = _mm512_unpackhi_epi64(b[i], b[i + 2]);
      a[i + 2] = _mm512_unpacklo_epi64(b[i + 1], b[i + 3]);
      a[i + 3] = _mm512_unpackhi_epi64(b[i + 1], b[i + 3]);
    }
    for (int i = 0; i < 16; i += 8) {
      for (int j = 0; j < 4; ++j) {
        b[i + j] = _mm512_shuffle_i32x4(a[i + j], a[i + j + 4], 0x88);
        b[i + j + 4] = _mm512_shuffle_i32x4(a[i + j], a[i + j + 4], 0xdd);
      }
    }
    for (int j = 0; j < 8; ++j) {
      a[j] = _mm512_shuffle_i32x4(b[j], b[j + 8], 0x88);
      a[j + 8] = _mm512_shuffle_i32x4(b[j], b[j + 8], 0xdd);
    }
    for (int i = 0; i < count; ++i) _mm512_storeu_si512(target + i * 2 * kTileColumns, a[i]);
  }
  static void Interleave(const Bf16* even, const Bf16* odd, int count, Bf16* target) {
    const __mmask16 mask = Mask(count);
    const __m512i a = _mm512_cvtepu16_epi32(_mm256_maskz_loadu_epi16(mask, even));
    const __m512i b = _mm512_cvtepu16_epi32(_mm256_maskz_loadu_epi16(mask, odd));
    _mm512_mask_storeu_epi32(target, mask, _mm512_or_si512(a, _mm512_slli_epi32(b, 16)));
  }
};

}  // namespace
}  // namespace penstock::simd
