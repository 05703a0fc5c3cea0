// Compiled with -mavx2 -mfma; called only on machines that support both.

#include "kernels/cpu/gemm/integer_avx2.h"

namespace penstock::simd {
namespace {

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

// Unpacks the codes of one group, 8 columns at a time. `table`: of codes that stand for integers.
template <Codes kCodes>
void UnpackGroup256(const std::byte* codes, int group, const __m256i (&zeros)[4], __m256i table,
                    int16_t* weights) {
  constexpr CodesUnit kUnit = kUnitOf<kCodes>;
  const __m256i mask = _mm256_set1_epi16(kCodes == Codes::kBytes ? 255 : 15);
  const __m256i byte = _mm256_set1_epi16(255);
  const __m256i high_mask = _mm256_set1_epi16(((1 << kUnit.high_bits) - 1) << 4);
  for (int i = 0; i < group;
       i += kUnit.inputs, codes += kUnit.words * 4 * kColumns, weights += kUnit.inputs * kColumns) {
    for (int v = 0; v < 4; ++v) {
      PENSTOCK_UNROLL
      for (int pair = 0; pair < 2 * kUnit.parts; ++pair) {
        // Pairs (0, 2), (1, 3), then (4, 6), (5, 7), and so on.
        const int part = pair / 2, in_byte = pair % 2 * 8;
        const __m256i word = Load256(codes + 4 * kColumns * (part / 2) + 32 * v);
        __m256i code = _mm256_and_si256(_mm256_srli_epi16(word, in_byte + part % 2 * 4), mask);
        if constexpr (kCodes == Codes::kTable) {
          code = _mm256_and_si256(_mm256_shuffle_epi8(table, code), byte);
        }
        if constexpr (kUnit.high_bits > 0) {
          const __m256i high = Load256(codes + 4 * kColumns * kUnit.low_words + 32 * v);
          const __m256i bits = AtBit4(high, in_byte + part * kUnit.high_bits);
          code = _mm256_or_si256(code, _mm256_and_si256(bits, high_mask));
        }
        Store256(weights + pair * 2 * kColumns + 16 * v, _mm256_sub_epi16(code, zeros[v]));
      }
    }
  }
}

void UnpackCodes256(const PanelForm& form, const std::byte* codes, const __m256i (&zeros)[4],
                    __m256i table, int16_t* weights) {
  switch (form.codes) {
    case Codes::kBytes:
      return UnpackGroup256<Codes::kBytes>(codes, form.group, zeros, table, weights);
    case Codes::kNibbles:
      return UnpackGroup256<Codes::kNibbles>(codes, form.group, zeros, table, weights);
    case Codes::kTable:
      return UnpackGroup256<Codes::kTable>(codes, form.group, zeros, table, weights);
    case Codes::kFive:
      return UnpackGroup256<Codes::kFive>(codes, form.group, zeros, table, weights);
    case Codes::kSix:
      return UnpackGroup256<Codes::kSix>(codes, form.group, zeros, table, weights);
  }
}

void Unpack256(const PanelForm& form, const std::byte* panel, int64_t groups,
               const UnpackedGroups& target) {
  int16_t* weights = target.weights;
  const __m256i table = TableIn(form);
  PanelReader256 reader;
  reader.codes = panel;
  int in_run = 0;
  for (int64_t g = 0; g < groups; ++g, reader.codes += form.code_bytes) {
    if (in_run == 0) reader.StartRun(form, kCodesAhead);
    __m256i zeros[4];
    for (int v = 0; v < 4; ++v) {
      const int64_t at = g * kColumns + 8 * v;
      _mm256_storeu_ps(target.scales + at, reader.Scales(form, in_run, 8 * v));
      if (form.offsets) _mm256_storeu_ps(target.offsets + at, reader.Offsets(form, in_run, 8 * v));
      zeros[v] = _mm256_set1_epi16(static_cast<int16_t>(form.zero));
      if (!form.zeros) continue;
      const __m256i one = reader.Zeros(form, 8 * v);
      zeros[v] = _mm256_or_si256(one, _mm256_slli_epi32(one, 16));
    }
    UnpackCodes256(form, reader.codes, zeros, table, weights);
    weights += int64_t{form.group} * kColumns;
    if (++in_run == form.run) in_run = 0;
  }
}

// AddPairs256 for two sums with the pair at `pair`.
inline void AddPairTwice256(__m256i (&sums)[2], const int16_t* pair, __m256i left, __m256i right) {
  struct [[gnu::may_alias]] Word {
    int16_t values[2];
  };
  __m256i x, products;
  asm("vpbroadcastd %4, %2\n\tvpmaddwd %5, %2, %3\n\tvpmaddwd %6, %2, %2\n\t"
      "vpaddd %3, %0, %0\n\tvpaddd %2, %1, %1"
      : "+x"(sums[0]), "+x"(sums[1]), "=&x"(x), "=&x"(products)
      : "m"(*reinterpret_cast<const Word*>(pair)), "x"(left), "x"(right));
}

// Multiplies one group of kRows rows by 16 columns. `a` and `w` are its pairs and its weights.
template <int kRows>
[[gnu::always_inline]] inline void MultiplyStrip256(int64_t pairs, const int16_t* a, int64_t stride,
                                                    const int16_t* w, __m256i (&sums)[kRows][2]) {
  PENSTOCK_UNROLL
  for (int r = 0; r < kRows; ++r) sums[r][0] = sums[r][1] = _mm256_setzero_si256();
  for (int64_t p = 0; p < pairs; ++p, a += stride, w += 2 * kColumns) {
    const __m256i left = Load256(w), right = Load256(w + 16);
    PENSTOCK_UNROLL
    for (int r = 0; r < kRows; ++r) AddPairTwice256(sums[r], a + 2 * r, left, right);
  }
}

// Adds the offsets' part of one group to kRows rows and 16 columns of a tile.
template <int kRows>
[[gnu::always_inline]] inline void AddOffsets256(const int32_t* sums, const float* offsets,
                                                 float* tile) {
  const __m256 left = _mm256_loadu_ps(offsets), right = _mm256_loadu_ps(offsets + 8);
  PENSTOCK_UNROLL
  for (int r = 0; r < kRows; ++r, tile += kColumns) {
    const __m256 sum = _mm256_cvtepi32_ps(Broadcast256(sums + r));
    _mm256_storeu_ps(tile, _mm256_fmadd_ps(sum, left, _mm256_loadu_ps(tile)));
    _mm256_storeu_ps(tile + 8, _mm256_fmadd_ps(sum, right, _mm256_loadu_ps(tile + 8)));
  }
}

// Adds the products of kRows rows, from `row` on, and 16 columns to a tile.
template <int kRows>
void Strip256(const WideProduct& product, int row, int column) {
  const int64_t pairs = product.pairs, stride = 2 * int64_t{product.rows};
  const int16_t* a = product.input + 2 * row;
  const int16_t* w = product.panel.weights + 2 * column;
  float* tile = product.tile + row * kColumns + column;
  for (int64_t g = 0; g < product.groups; ++g, a += pairs * stride, w += pairs * 2 * kColumns) {
    __m256i sums[kRows][2];
    MultiplyStrip256<kRows>(pairs, a, stride, w, sums);
    const float* scales = product.panel.scales + g * kColumns + column;
    const __m256 left = _mm256_loadu_ps(scales), right = _mm256_loadu_ps(scales + 8);
    float* target = tile;
    PENSTOCK_UNROLL
    for (int r = 0; r < kRows; ++r, target += kColumns) {
      _mm256_storeu_ps(
          target, _mm256_fmadd_ps(_mm256_cvtepi32_ps(sums[r][0]), left, _mm256_loadu_ps(target)));
      _mm256_storeu_ps(target + 8, _mm256_fmadd_ps(_mm256_cvtepi32_ps(sums[r][1]), right,
                                                   _mm256_loadu_ps(target + 8)));
    }
    if (product.panel.offsets == nullptr) continue;
    AddOffsets256<kRows>(product.sums + g * product.rows + row,
                         product.panel.offsets + g * kColumns + column, tile);
  }
}

// 2 * 6 accumulators and four operands fit in 16 registers.
constexpr int kStripRows = 6;

template <int kRows = kStripRows>
void StripOf256(const WideProduct& product, int row, int rows, int column) {
  if constexpr (kRows > 0) {
    if (rows == kRows) return Strip256<kRows>(product, row, column);
    StripOf256<kRows - 1>(product, row, rows, column);
  }
}

void Wide256(const WideProduct& product) {
  const int strips = (product.rows + kStripRows - 1) / kStripRows;
  for (int column = 0; column < kColumns; column += 16) {
    for (int s = 0; s < strips; ++s) {
      const int first = product.rows * s / strips, last = product.rows * (s + 1) / strips;
      StripOf256(product, first, last - first, column);
    }
  }
}

}  // namespace

extern const IntegerOps kAvx2IntegerOps = {.magnitude = Magnitude256,
                                           .quantise = Quantise256,
                                           .unpack = Unpack256,
                                           .multiply_wide = Wide256,
                                           .multiply_narrow = Narrow256,
                                           .takes_planes = TakesPlanes256};

}  // namespace penstock::simd
