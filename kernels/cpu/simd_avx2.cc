// Compiled with -mavx2 -mfma; called only on machines that support both.

#include <immintrin.h>

#include "kernels/cpu/simd_ops.h"

namespace penstock::simd {
namespace {

struct Avx2 {
  using Reg = __m256;
  static constexpr int kLanes = 8;

  static __m256i Mask(int count) {
    return _mm256_cmpgt_epi32(_mm256_set1_epi32(count), _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7));
  }
  static Reg Load(const float* p) { return _mm256_loadu_ps(p); }
  static Reg LoadPart(const float* p, int count) { return _mm256_maskload_ps(p, Mask(count)); }
  static void Store(float* p, Reg a) { _mm256_storeu_ps(p, a); }
  static void StorePart(float* p, int count, Reg a) { _mm256_maskstore_ps(p, Mask(count), a); }
  static Reg Set(float x) { return _mm256_set1_ps(x); }
  static Reg Add(Reg a, Reg b) { return _mm256_add_ps(a, b); }
  static Reg Sub(Reg a, Reg b) { return _mm256_sub_ps(a, b); }
  static Reg Mul(Reg a, Reg b) { return _mm256_mul_ps(a, b); }
  static Reg Div(Reg a, Reg b) { return _mm256_div_ps(a, b); }
  static Reg Fma(Reg a, Reg b, Reg c) { return _mm256_fmadd_ps(a, b, c); }
  static Reg Max(Reg a, Reg b) { return _mm256_max_ps(a, b); }
  static Reg Min(Reg a, Reg b) { return _mm256_min_ps(a, b); }
  static Reg Round(Reg a) {
    return _mm256_round_ps(a, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
  }
  static Reg TimesPowerOf2(Reg a, Reg n) {
    const __m256i shift = _mm256_slli_epi32(_mm256_cvtps_epi32(n), 23);
    return _mm256_castsi256_ps(_mm256_add_epi32(_mm256_castps_si256(a), shift));
  }
  static Reg ZeroWhereLess(Reg a, Reg limit, Reg value) {
    return _mm256_andnot_ps(_mm256_cmp_ps(a, limit, _CMP_LT_OQ), value);
  }
  static float Sum(Reg a) {
    __m128 half = _mm_add_ps(_mm256_castps256_ps128(a), _mm256_extractf128_ps(a, 1));
    half = _mm_add_ps(half, _mm_movehl_ps(half, half));
    return _mm_cvtss_f32(_mm_add_ss(half, _mm_movehdup_ps(half)));
  }
  static float MaxLane(Reg a) {
    __m128 half = _mm_max_ps(_mm256_castps256_ps128(a), _mm256_extractf128_ps(a, 1));
    half = _mm_max_ps(half, _mm_movehl_ps(half, half));
    return _mm_cvtss_f32(_mm_max_ss(half, _mm_movehdup_ps(half)));
  }
  static Reg LoadBf16(const Bf16* p) {
    const __m128i bits = _mm_loadu_si128(reinterpret_cast<const __m128i*>(p));
    return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(bits), 16));
  }
  static void StoreBf16(Bf16* p, Reg a) {
    const __m256i bits = _mm256_castps_si256(a);
    const __m256i odd = _mm256_and_si256(_mm256_srli_epi32(bits, 16), _mm256_set1_epi32(1));
    const __m256i rounded =
        _mm256_add_epi32(bits, _mm256_add_epi32(odd, _mm256_set1_epi32(0x7fff)));
    const __m256i quiet = _mm256_or_si256(bits, _mm256_set1_epi32(0x400000));
    const __m256i nan = _mm256_castps_si256(_mm256_cmp_ps(a, a, _CMP_UNORD_Q));
    const __m256i high = _mm256_srli_epi32(_mm256_blendv_epi8(rounded, quiet, nan), 16);
    const __m128i packed =
        _mm_packus_epi32(_mm256_castsi256_si128(high), _mm256_extracti128_si256(high, 1));
    _mm_storeu_si128(reinterpret_cast<__m128i*>(p), packed);
  }
  static void StoreActivations(void* base, int index, Reg a) {
    Store(static_cast<float*>(base) + index, a);
  }
  // 16 codes, each in the high byte of a lane.
  static __m256i E4m3Numbers(__m256i codes) {
    const __m256i bits = _mm256_and_si256(_mm256_srai_epi16(codes, 4),
                                          _mm256_set1_epi16(static_cast<int16_t>(0x87f0)));
    const __m256i exponent = _mm256_and_si256(bits, _mm256_set1_epi16(0x0780));
    const __m256i subnormal = _mm256_cmpeq_epi16(exponent, _mm256_setzero_si256());
    const __m256i table = _mm256_broadcastsi128_si256(
        _mm_loadu_si128(reinterpret_cast<const __m128i*>(kE4m3Subnormals)));
    // The table's bytes 2m and 2m + 1.
    const __m256i mantissa = _mm256_and_si256(_mm256_srli_epi16(bits, 4), _mm256_set1_epi16(7));
    const __m256i places = _mm256_add_epi16(_mm256_mullo_epi16(mantissa, _mm256_set1_epi16(0x0202)),
                                            _mm256_set1_epi16(0x0100));
    const __m256i more = _mm256_blendv_epi8(_mm256_set1_epi16(kE4m3Bias),
                                            _mm256_shuffle_epi8(table, places), subnormal);
    return _mm256_add_epi16(bits, more);
  }
  static void ExpandE4m3(const std::byte* codes, int64_t words, Bf16* numbers) {
    for (int64_t w = 0; w < words; ++w, codes += 4 * kTileColumns, numbers += 4 * kTileColumns) {
      for (int part = 0; part < 4; ++part) {
        const __m256i both =
            _mm256_loadu_si256(reinterpret_cast<const __m256i*>(codes + 32 * part));
        auto* low = reinterpret_cast<__m256i*>(numbers + 16 * part);
        auto* high = reinterpret_cast<__m256i*>(numbers + 2 * kTileColumns + 16 * part);
        _mm256_storeu_si256(low, E4m3Numbers(_mm256_slli_epi16(both, 8)));
        _mm256_storeu_si256(high, E4m3Numbers(both));
      }
    }
  }
  static void TransposePairs(const Bf16* const* rows, int64_t offset, int count, Bf16* target) {
    __m256 in[8], half[8];
    for (int i = 0; i < 8; ++i) {
      in[i] = LoadPart(reinterpret_cast<const float*>(rows[i] + offset), count);
    }
    for (int i = 0; i < 8; i += 2) {
      half[i] = _mm256_unpacklo_ps(in[i], in[i + 1]);
      half[i + 1] = _mm256_unpackhi_ps(in[i], in[i + 1]);
    }
    __m256 quad[8];
    for (int i = 0; i < 8; i += 4) {
      quad[i] = _mm256_shuffle_ps(half[i], half[i + 2], 0x44);
      quad[i + 1] = _mm256_shuffle_ps(half[i], half[i + 2], 0xee);
      quad[i + 2] = _mm256_shuffle_ps(half[i + 1], half[i + 3], 0x44);
      quad[i + 3] = _mm256_shuffle_ps(half[i + 1], half[i + 3], 0xee);
    }
    for (int i = 0; i < count; ++i) {
      const __m256 pair = i < 4 ? _mm256_permute2f128_ps(quad[i], quad[i + 4], 0x20)
                                : _mm256_permute2f128_ps(quad[i - 4], quad[i], 0x31);
      Store(reinterpret_cast<float*>(target + i * 2 * kTileColumns), pair);
    }
  }
  static void Interleave(const Bf16* even, const Bf16* odd, int, Bf16* target) {
    const __m128i a = _mm_loadu_si128(reinterpret_cast<const __m128i*>(even));
    const __m128i b = _mm_loadu_si128(reinterpret_cast<const __m128i*>(odd));
    // Dims are a multiple of 8, so this never overruns.
    auto* out = reinterpret_cast<__m128i*>(target);
    _mm_storeu_si128(out, _mm_unpacklo_epi16(a, b));
    _mm_storeu_si128(out + 1, _mm_unpackhi_epi16(a, b));
  }
};

struct Multiply {
  static constexpr int kActivationBytes = sizeof(float);
  static constexpr auto PackRows = PackFloatRows<Avx2>;

  // Multiplies kRows rows by 16 columns: 2 * kRows accumulators of the 16 registers.
  template <int kRows>
  static void Strip(int64_t pairs, const float* a, int64_t row_step, int64_t pair_step,
                    const Bf16* b, float* tile) {
    __m256 sums[kRows][2];
    for (int r = 0; r < kRows; ++r) {
      for (int v = 0; v < 2; ++v) sums[r][v] = _mm256_loadu_ps(tile + r * kTileColumns + 8 * v);
    }
    const __m256i upper = _mm256_set1_epi32(static_cast<int>(0xffff0000u));
    for (int64_t p = 0; p < pairs; ++p, a += pair_step, b += 2 * kTileColumns) {
      _mm_prefetch(reinterpret_cast<const char*>(b) + 4096, _MM_HINT_T1);
      const __m256i both[2] = {_mm256_loadu_si256(reinterpret_cast<const __m256i*>(b)),
                               _mm256_loadu_si256(reinterpret_cast<const __m256i*>(b + 16))};
      for (int v = 0; v < 2; ++v) {
        const __m256 even = _mm256_castsi256_ps(_mm256_slli_epi32(both[v], 16));
        const __m256 odd = _mm256_castsi256_ps(_mm256_and_si256(both[v], upper));
        for (int r = 0; r < kRows; ++r) {
          const float* x = a + r * row_step;
          sums[r][v] = _mm256_fmadd_ps(_mm256_broadcast_ss(x), even, sums[r][v]);
          sums[r][v] = _mm256_fmadd_ps(_mm256_broadcast_ss(x + 1), odd, sums[r][v]);
        }
      }
    }
    for (int r = 0; r < kRows; ++r) {
      for (int v = 0; v < 2; ++v) _mm256_storeu_ps(tile + r * kTileColumns + 8 * v, sums[r][v]);
    }
  }

  static void Rows(int rows, int64_t pairs, const float* a, int64_t row_step, int64_t pair_step,
                   const Bf16* b, float* tile) {
    for (int c = 0; c < kTileColumns; c += 16) {
      int r = 0;
      for (; r + 4 <= rows; r += 4) {
        Strip<4>(pairs, a + r * row_step, row_step, pair_step, b + 2 * c,
                 tile + r * kTileColumns + c);
      }
      for (; r < rows; ++r) {
        Strip<1>(pairs, a + r * row_step, row_step, pair_step, b + 2 * c,
                 tile + r * kTileColumns + c);
      }
    }
  }
  static void Tile(int rows, int64_t pairs, const void* a, const Bf16* b, float* tile) {
    Rows(rows, pairs, static_cast<const float*>(a), 2, 2 * rows, b, tile);
  }
  template <int kPanels>
  static void Panels(int rows, int64_t pairs, const void* a, const TileProduct* products) {
    for (int n = 0; n < kPanels; ++n) {
      Tile(rows, pairs, a, products[n].weights, products[n].tile);
    }
  }
  static void Weights(int rows, const void* a, const Bf16* b, float* tile) {
    Rows(rows, kKvTile / 2, static_cast<const float*>(a), kKvTile, 2, b, tile);
  }
};

}  // namespace

extern const SimdOps kAvx2Ops = MakeSimdOps<Avx2, Multiply>();

}  // namespace penstock::simd
