#pragma once

#include <immintrin.h>

#include "kernels/cpu/gemm/integer_ops.h"

// The parts that the files of AVX2's IntegerOps share. Only files that are compiled for AVX2
// include it.

// The compiler keeps accumulators in registers only if it unrolls their loops early.
#if defined(__clang__)
#define PENSTOCK_UNROLL _Pragma("unroll")
#else
#define PENSTOCK_UNROLL _Pragma("GCC unroll 16")
#endif

namespace penstock::simd {

// IntegerOps::multiply_narrow and takes_planes.
void Narrow256(const NarrowRows& rows, const PanelForm& form, int count,
               const std::byte* const* panels, float* tiles);
bool TakesPlanes256(const PanelForm& form);

namespace {

constexpr int kColumns = 32;

inline __m256i Load256(const void* p) { return _mm256_loadu_si256(static_cast<const __m256i*>(p)); }
inline void Store256(void* p, __m256i a) { _mm256_storeu_si256(static_cast<__m256i*>(p), a); }
inline __m256i Broadcast256(const void* word) {
  int32_t value;
  __builtin_memcpy(&value, word, sizeof(value));
  return _mm256_set1_epi32(value);
}
inline void PrefetchCodes256(const std::byte* line) {
  _mm_prefetch(reinterpret_cast<const char*>(line), _MM_HINT_T1);
}

// g++ 12 stores accumulators of the intrinsics in every step of a loop, because it loads all
// operands first, which halves the speed of tiles. Assembly leaves it no choice.
//
// Adds the products of two signed 16-bit integers to each lane.
inline void AddPairs256(__m256i& sum, __m256i a, __m256i b) {
  __m256i products;
  asm("vpmaddwd %3, %2, %1\n\tvpaddd %1, %0, %0" : "+x"(sum), "=&x"(products) : "x"(a), "x"(b));
}
// Adds the products of two unsigned and two signed bytes to each lane of 16 bits.
inline void AddBytes256(__m256i& sum, __m256i codes, __m256i signed_bytes) {
  __m256i products;
  asm("vpmaddubsw %3, %2, %1\n\tvpaddw %1, %0, %0"
      : "+x"(sum), "=&x"(products)
      : "x"(codes), "x"(signed_bytes));
}

// A half's exponent and mantissa at a float's places make the value times 2^-112.
inline __m256 Halves256(const std::byte* halves) {
  const __m256i bits =
      _mm256_cvtepi16_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(halves)));
  const __m256i kept = _mm256_set1_epi32(static_cast<int32_t>(0x8fffe000));
  const __m256i places = _mm256_and_si256(_mm256_slli_epi32(bits, 13), kept);
  return _mm256_mul_ps(_mm256_castsi256_ps(places), _mm256_set1_ps(0x1p112f));
}

inline __m256 Bf16s256(const std::byte* numbers) {
  const __m256i bits =
      _mm256_cvtepu16_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(numbers)));
  return _mm256_castsi256_ps(_mm256_slli_epi32(bits, 16));
}

// The factors of a run's scales and offsets, if scales have two levels.
struct Factors256 {
  void Load(const PanelForm& form, const std::byte* head) {
    if (form.scale != ScaleType::kTwoLevel) return;
    for (int c = 0; c < kColumns; c += 8) {
      _mm256_store_ps(scales + c, Halves256(head + 2 * c));
      if (form.offsets) _mm256_store_ps(offsets + c, Halves256(head + kOffsetFactorsAt + 2 * c));
    }
  }
  alignas(32) float scales[kColumns];
  alignas(32) float offsets[kColumns];  // set if the form has offsets
};

// Factors times the integers of eight columns.
inline __m256 TwoLevel256(const float* factors, const std::byte* integers) {
  const __m128i bytes = _mm_loadl_epi64(reinterpret_cast<const __m128i*>(integers));
  return _mm256_mul_ps(_mm256_load_ps(factors), _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(bytes)));
}

// A panel on the way through its groups.
struct PanelReader256 {
  // Begins a run, and asks for the head `ahead` bytes behind this one.
  void StartRun(const PanelForm& form, int64_t ahead) {
    head = codes;
    for (int64_t at = 0; at < form.head_bytes; at += 64) PrefetchCodes256(head + at + ahead);
    codes += form.head_bytes;
    factors.Load(form, head);
  }
  // The scales and offsets of eight columns from `c` on, of group `i` of the run.
  [[gnu::always_inline]] __m256 Scales(const PanelForm& form, int i, int c) const {
    const std::byte* scales = head + form.scales_at;
    if (form.scale == ScaleType::kF16) return Halves256(scales + 2 * c);
    if (form.scale == ScaleType::kTwoLevel) {
      return TwoLevel256(factors.scales + c, scales + kColumns * i + c);
    }
    if (form.scale == ScaleType::kBf16) return Bf16s256(scales + 2 * c);
    return _mm256_loadu_ps(reinterpret_cast<const float*>(scales) + c);
  }
  [[gnu::always_inline]] __m256 Offsets(const PanelForm& form, int i, int c) const {
    const std::byte* offsets = head + form.offsets_at;
    if (form.scale == ScaleType::kTwoLevel) {
      return TwoLevel256(factors.offsets + c, offsets + kColumns * i + c);
    }
    return _mm256_loadu_ps(reinterpret_cast<const float*>(offsets) + c);
  }
  // The zero points of eight columns, as 32-bit integers.
  __m256i Zeros(const PanelForm& form, int c) const {
    return _mm256_cvtepu8_epi32(
        _mm_loadl_epi64(reinterpret_cast<const __m128i*>(head + form.zeros_at + c)));
  }

  const std::byte* codes;  // of the next group
  const std::byte* head;
  Factors256 factors;
};

// The bits of `word` from `first` on at the place of a byte's bit 4, with others around them.
inline __m256i AtBit4(__m256i word, int first) {
  return first < 4 ? _mm256_slli_epi16(word, 4 - first) : _mm256_srli_epi16(word, first - 4);
}

// The table of a form's codes, once for each half of a register.
inline __m256i TableIn(const PanelForm& form) {
  if (form.table == nullptr) return _mm256_setzero_si256();
  return _mm256_broadcastsi128_si256(_mm_loadu_si128(reinterpret_cast<const __m128i*>(form.table)));
}

}  // namespace
}  // namespace penstock::simd
