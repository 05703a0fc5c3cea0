// Compiled with -mavx2 -mfma; called only on machines that support both.

#include <immintrin.h>

#include "kernels/cpu/gemm/integer_ops.h"

namespace penstock::simd {
namespace {

constexpr int kColumns = 32;

__m256i Load256(const void* p) { return _mm256_loadu_si256(static_cast<const __m256i*>(p)); }
void Store256(void* p, __m256i a) { _mm256_storeu_si256(static_cast<__m256i*>(p), a); }

float Magnitude256(const float* x, int64_t size) {
  const __m256i mask = _mm256_set1_epi32(0x7fffffff);
  __m256i max = _mm256_setzero_si256();
  int64_t i = 0;
  for (; i + 8 <= size; i += 8) {
    max = _mm256_max_epi32(max, _mm256_and_si256(Load256(x + i), mask));
  }
  alignas(32) int32_t lanes[8];
  Store256(lanes, max);
  int32_t top = 0;
  for (const int32_t lane : lanes) top = lane > top ? lane : top;
  for (; i < size; ++i) {
    int32_t bits;
    __builtin_memcpy(&bits, x + i, sizeof(bits));
    bits &= 0x7fffffff;
    top = bits > top ? bits : top;
  }
  float magnitude;
  __builtin_memcpy(&magnitude, &top, sizeof(top));
  return magnitude;
}

void Quantise256(const float* x, int64_t size, float factor, int16_t* codes) {
  const __m256 f = _mm256_set1_ps(factor);
  int64_t i = 0;
  for (; i + 16 <= size; i += 16) {
    const __m256i low = _mm256_cvtps_epi32(_mm256_mul_ps(_mm256_loadu_ps(x + i), f));
    const __m256i high = _mm256_cvtps_epi32(_mm256_mul_ps(_mm256_loadu_ps(x + i + 8), f));
    Store256(codes + i, _mm256_permute4x64_epi64(_mm256_packs_epi32(low, high), 0xd8));
  }
  for (; i < size; ++i) {
    codes[i] = static_cast<int16_t>(_mm_cvtss_si32(_mm_set_ss(x[i] * factor)));
  }
}

// A half's exponent and mantissa at a float's places make the value times 2^-112.
__m256 Halves256(const std::byte* halves) {
  const __m256i bits =
      _mm256_cvtepu16_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(halves)));
  const __m256i sign = _mm256_slli_epi32(_mm256_srli_epi32(bits, 15), 31);
  const __m256i rest = _mm256_slli_epi32(_mm256_and_si256(bits, _mm256_set1_epi32(0x7fff)), 13);
  return _mm256_mul_ps(_mm256_castsi256_ps(_mm256_or_si256(sign, rest)), _mm256_set1_ps(0x1p112f));
}

__m256 Bf16s256(const std::byte* numbers) {
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

// Stores factors times the integers of one group.
void TwoLevel256(const float* factors, const std::byte* integers, float* products) {
  for (int c = 0; c < kColumns; c += 8) {
    const __m128i bytes = _mm_loadl_epi64(reinterpret_cast<const __m128i*>(integers + c));
    const __m256 numbers = _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(bytes));
    _mm256_storeu_ps(products + c, _mm256_mul_ps(_mm256_load_ps(factors + c), numbers));
  }
}

void OneLevel256(ScaleType type, const std::byte* scales, float* values) {
  for (int c = 0; c < kColumns; c += 8) {
    __m256 value;
    if (type == ScaleType::kF32) {
      value = _mm256_loadu_ps(reinterpret_cast<const float*>(scales) + c);
    } else {
      value = type == ScaleType::kF16 ? Halves256(scales + 2 * c) : Bf16s256(scales + 2 * c);
    }
    _mm256_storeu_ps(values + c, value);
  }
}

// Stores the scales and offsets of group g, which is group `i` of a run.
void Scales256(const PanelForm& form, const std::byte* head, const Factors256& factors, int i,
               int64_t g, const UnpackedGroups& target) {
  const std::byte *scales = head + form.scales_at, *offsets = head + form.offsets_at;
  if (form.scale == ScaleType::kTwoLevel) {
    TwoLevel256(factors.scales, scales + kColumns * i, target.scales + g * kColumns);
    if (!form.offsets) return;
    TwoLevel256(factors.offsets, offsets + kColumns * i, target.offsets + g * kColumns);
  } else {
    OneLevel256(form.scale, scales, target.scales + g * kColumns);
    if (form.offsets) OneLevel256(ScaleType::kF32, offsets, target.offsets + g * kColumns);
  }
}

// The table of a form's codes, once for each half of a register.
__m256i TableIn(const PanelForm& form) {
  if (form.table == nullptr) return _mm256_setzero_si256();
  return _mm256_broadcastsi128_si256(_mm_loadu_si128(reinterpret_cast<const __m128i*>(form.table)));
}

// Unpacks the codes of one group, 8 columns at a time. `table`: of codes that stand for integers.
template <int kBits, bool kTable = false>
void UnpackGroup256(const std::byte* codes, int group, const __m256i (&zeros)[4], __m256i table,
                    int16_t* weights) {
  constexpr int kInputs = 32 / kBits;
  const __m256i mask = _mm256_set1_epi16(kBits == 4 ? 15 : 255);
  const __m256i byte = _mm256_set1_epi16(255);
  for (int i = 0; i < group; i += kInputs, codes += 4 * kColumns, weights += kInputs * kColumns) {
    for (int v = 0; v < 4; ++v) {
      const __m256i word = Load256(codes + 32 * v);
      for (int pair = 0; pair < kInputs / 2; ++pair) {
        // Pairs (0, 2), (1, 3), and of 4-bit codes (4, 6), (5, 7).
        const int shift = pair % 2 * 8 + pair / 2 * 4;
        __m256i code = _mm256_and_si256(_mm256_srli_epi16(word, shift), mask);
        if constexpr (kTable) code = _mm256_and_si256(_mm256_shuffle_epi8(table, code), byte);
        Store256(weights + pair * 2 * kColumns + 16 * v, _mm256_sub_epi16(code, zeros[v]));
      }
    }
  }
}

void Unpack256(const PanelForm& form, const std::byte* panel, int64_t groups,
               const UnpackedGroups& target) {
  int16_t* weights = target.weights;
  const __m256i table = TableIn(form);
  const std::byte *head = panel, *codes = panel;
  Factors256 factors;
  int in_run = 0;
  for (int64_t g = 0; g < groups; ++g, codes += form.code_bytes) {
    if (in_run == 0) {
      head = codes;
      codes += form.head_bytes;
      factors.Load(form, head);
    }
    Scales256(form, head, factors, in_run, g, target);
    __m256i zeros[4];
    for (int v = 0; v < 4; ++v) {
      zeros[v] = _mm256_set1_epi16(static_cast<int16_t>(form.zero));
      if (!form.zeros) continue;
      const __m256i one = _mm256_cvtepu8_epi32(
          _mm_loadl_epi64(reinterpret_cast<const __m128i*>(head + form.zeros_at + 8 * v)));
      zeros[v] = _mm256_or_si256(one, _mm256_slli_epi32(one, 16));
    }
    if (form.table != nullptr) {
      UnpackGroup256<4, true>(codes, form.group, zeros, table, weights);
    } else if (form.bits == 4) {
      UnpackGroup256<4>(codes, form.group, zeros, table, weights);
    } else {
      UnpackGroup256<8>(codes, form.group, zeros, table, weights);
    }
    weights += int64_t{form.group} * kColumns;
    if (++in_run == form.run) in_run = 0;
  }
}

// Multiplies one group of kRows rows by 16 columns: 2 * kRows accumulators of the 16 registers.
template <int kRows>
void Strip256(int64_t pairs, const int16_t* a, int stride, const int16_t* w, const float* scales,
              float* tile) {
  __m256i sums[kRows][2];
  for (auto& row : sums) row[0] = row[1] = _mm256_setzero_si256();
  for (int64_t p = 0; p < pairs; ++p, a += 2 * stride, w += 2 * kColumns) {
    const __m256i left = Load256(w), right = Load256(w + 16);
    for (int r = 0; r < kRows; ++r) {
      int32_t pair;
      __builtin_memcpy(&pair, a + 2 * r, sizeof(pair));
      const __m256i x = _mm256_set1_epi32(pair);
      sums[r][0] = _mm256_add_epi32(sums[r][0], _mm256_madd_epi16(x, left));
      sums[r][1] = _mm256_add_epi32(sums[r][1], _mm256_madd_epi16(x, right));
    }
  }
  for (int r = 0; r < kRows; ++r) {
    for (int v = 0; v < 2; ++v) {
      float* target = tile + r * kColumns + 8 * v;
      const __m256 sum = _mm256_cvtepi32_ps(sums[r][v]);
      _mm256_storeu_ps(
          target, _mm256_fmadd_ps(sum, _mm256_loadu_ps(scales + 8 * v), _mm256_loadu_ps(target)));
    }
  }
}

// Adds the offsets' part of one group to a tile.
void AddOffsets256(const int32_t* sums, int rows, const float* offsets, float* tile) {
  for (int r = 0; r < rows; ++r, tile += kColumns) {
    const __m256 sum = _mm256_set1_ps(static_cast<float>(sums[r]));
    for (int c = 0; c < kColumns; c += 8) {
      _mm256_storeu_ps(
          tile + c, _mm256_fmadd_ps(sum, _mm256_loadu_ps(offsets + c), _mm256_loadu_ps(tile + c)));
    }
  }
}

void Wide256(const WideProduct& product) {
  const int rows = product.rows;
  const int64_t pairs = product.pairs;
  float* tile = product.tile;
  for (int64_t g = 0; g < product.groups; ++g) {
    const int16_t* a = product.input + g * pairs * rows * 2;
    const int16_t* weights = product.panel.weights + g * pairs * 2 * kColumns;
    const float* scales = product.panel.scales + g * kColumns;
    for (int c = 0; c < kColumns; c += 16) {
      int r = 0;
      for (; r + 4 <= rows; r += 4) {
        Strip256<4>(pairs, a + 2 * r, rows, weights + 2 * c, scales + c, tile + r * kColumns + c);
      }
      for (; r < rows; ++r) {
        Strip256<1>(pairs, a + 2 * r, rows, weights + 2 * c, scales + c, tile + r * kColumns + c);
      }
    }
    if (product.panel.offsets != nullptr) {
      AddOffsets256(product.sums + g * rows, rows, product.panel.offsets + g * kColumns, tile);
    }
  }
}

}  // namespace

extern const IntegerOps kAvx2IntegerOps = {.magnitude = Magnitude256,
                                           .quantise = Quantise256,
                                           .unpack = Unpack256,
                                           .multiply_wide = Wide256,
                                           .multiply_narrow = nullptr};

}  // namespace penstock::simd
