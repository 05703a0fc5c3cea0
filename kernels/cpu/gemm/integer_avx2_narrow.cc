// Compiled with -mavx2 -mfma; called only on machines that support both.

#include "kernels/cpu/gemm/integer_avx2.h"

// Products of few rows, which read codes without unpacking them (IntegerOps::multiply_narrow).

namespace penstock::simd {
namespace {

// Sums of kSlices times eight columns of one panel.
template <int kRows, int kSlices>
using Sums256 = __m256i[kRows][kSlices];

template <int kRows, int kSlices>
[[gnu::always_inline]] inline void Clear256(Sums256<kRows, kSlices>& sums) {
  PENSTOCK_UNROLL
  for (int r = 0; r < kRows; ++r) {
    PENSTOCK_UNROLL
    for (int s = 0; s < kSlices; ++s) sums[r][s] = _mm256_setzero_si256();
  }
}

template <int kSlices>
[[gnu::always_inline]] inline void PrefetchSlices256(const std::byte* codes) {
  PENSTOCK_UNROLL
  for (int s = 0; s < kSlices; s += 2) PrefetchCodes256(codes + 32 * s);
}

// Four inputs of a word of 4-bit integers: those in the low halves of bytes, or in the high ones.
template <bool kHigh>
[[gnu::always_inline]] inline __m256i Nibbles256(const std::byte* codes) {
  const __m256i word = Load256(codes);
  return _mm256_and_si256(kHigh ? _mm256_srli_epi16(word, 4) : word, _mm256_set1_epi8(15));
}

// Adds the products of these inputs, whose planes are at `x`, to sums of 16 bits. Operands are
// loaded where they are used, or they would not fit in registers.
template <bool kHigh, int kRows, int kSlices>
[[gnu::always_inline]] inline void AddNibbles256(const std::byte* codes, const int8_t* x,
                                                 Sums256<kRows, kSlices>& high,
                                                 Sums256<kRows, kSlices>& low) {
  PENSTOCK_UNROLL
  for (int r = 0; r < kRows; ++r) {
    const __m256i x_high = Broadcast256(x + 8 * r), x_low = Broadcast256(x + 8 * r + 4);
    PENSTOCK_UNROLL
    for (int s = 0; s < kSlices; ++s) {
      const __m256i integers = Nibbles256<kHigh>(codes + 32 * s);
      AddBytes256(high[r][s], integers, x_high);
      AddBytes256(low[r][s], integers, x_low);
    }
  }
}

// Adds the products of kWords words of 4-bit integers, eight inputs each, to sums. Up to four words
// fit in 16 bits: 16 * 15 * 128 < 2^15.
template <int kWords, int kRows, int kSlices>
[[gnu::always_inline]] inline void AddWords256(const std::byte* codes, const int8_t* x,
                                               int64_t ahead, Sums256<kRows, kSlices>& sums) {
  Sums256<kRows, kSlices> high, low;
  Clear256<kRows, kSlices>(high);
  Clear256<kRows, kSlices>(low);
  PENSTOCK_UNROLL
  for (int w = 0; w < kWords; ++w, codes += 4 * kColumns, x += 16 * kRows) {
    PrefetchSlices256<kSlices>(codes + ahead);
    AddNibbles256<false, kRows, kSlices>(codes, x, high, low);
    AddNibbles256<true, kRows, kSlices>(codes, x + 8 * kRows, high, low);
  }
  PENSTOCK_UNROLL
  for (int r = 0; r < kRows; ++r) {
    PENSTOCK_UNROLL
    for (int s = 0; s < kSlices; ++s) {
      AddPairs256(sums[r][s], high[r][s], _mm256_set1_epi16(256));
      AddPairs256(sums[r][s], low[r][s], _mm256_set1_epi16(1));
    }
  }
}

template <int kRows, int kSlices>
[[gnu::always_inline]] inline void AddNibbleGroup256(const std::byte* codes, int group,
                                                     const int8_t* x, int64_t ahead,
                                                     Sums256<kRows, kSlices>& sums) {
  if (group == kGroupMin) return AddWords256<2, kRows, kSlices>(codes, x, ahead, sums);
  for (int i = 0; i < group; i += 32, codes += 16 * kColumns, x += 64 * kRows) {
    AddWords256<4, kRows, kSlices>(codes, x, ahead, sums);
  }
}

// Adds the products of two inputs, whose pairs are at `x`, to sums.
template <int kRows, int kSlices>
[[gnu::always_inline]] inline void AddInputs256(const int16_t* x, const __m256i (&codes)[kSlices],
                                                Sums256<kRows, kSlices>& sums) {
  PENSTOCK_UNROLL
  for (int r = 0; r < kRows; ++r) {
    const __m256i pair = Broadcast256(x + 2 * r);
    PENSTOCK_UNROLL
    for (int s = 0; s < kSlices; ++s) AddPairs256(sums[r][s], codes[s], pair);
  }
}

// The integers of 32 codes, four of each of eight columns: those of part `part` of a unit, whose
// words begin at `words`.
template <Codes kCodes>
[[gnu::always_inline]] inline __m256i Integers256(const std::byte* words, int part, __m256i table) {
  constexpr CodesUnit kUnit = kUnitOf<kCodes>;
  __m256i word = Load256(words + 4 * kColumns * (part / 2));
  if constexpr (kCodes == Codes::kBytes) return word;
  if (part % 2 == 1) word = _mm256_srli_epi16(word, 4);
  const __m256i nibbles = _mm256_and_si256(word, _mm256_set1_epi8(15));
  if constexpr (kCodes == Codes::kTable) return _mm256_shuffle_epi8(table, nibbles);
  if constexpr (kUnit.high_bits == 0) return nibbles;
  const __m256i high = Load256(words + 4 * kColumns * kUnit.low_words);
  const __m256i mask = _mm256_set1_epi8(((1 << kUnit.high_bits) - 1) << 4);
  return _mm256_or_si256(nibbles, _mm256_and_si256(AtBit4(high, part * kUnit.high_bits), mask));
}

// Integers of 5, 6 and 8 bits, and those of a table.
template <Codes kCodes, int kRows, int kSlices>
[[gnu::always_inline]] inline void AddByteGroup256(const std::byte* codes, int group, __m256i table,
                                                   const int16_t* x, int64_t ahead,
                                                   Sums256<kRows, kSlices>& sums) {
  constexpr CodesUnit kUnit = kUnitOf<kCodes>;
  const __m256i byte = _mm256_set1_epi16(255);
  for (int i = 0; i < group; i += kUnit.inputs, codes += kUnit.words * 4 * kColumns) {
    PENSTOCK_UNROLL
    for (int w = 0; w < kUnit.words; ++w) {
      PrefetchSlices256<kSlices>(codes + 4 * kColumns * w + ahead);
    }
    PENSTOCK_UNROLL
    for (int part = 0; part < kUnit.parts; ++part, x += 4 * kRows) {
      __m256i even[kSlices], odd[kSlices];
      PENSTOCK_UNROLL
      for (int s = 0; s < kSlices; ++s) {
        const __m256i word = Integers256<kCodes>(codes + 32 * s, part, table);
        even[s] = _mm256_and_si256(word, byte);
        odd[s] = _mm256_srli_epi16(word, 8);
      }
      AddInputs256<kRows, kSlices>(x, even, sums);
      AddInputs256<kRows, kSlices>(x + 2 * kRows, odd, sums);
    }
  }
}

// One group of the activations of kRows rows.
template <int kRows>
struct NarrowGroup256 {
  int in_run;            // its place in a run
  const int8_t* x;       // NarrowRows::planes of it
  const int32_t* sums;   // of the activations of each row
  int32_t zeros[kRows];  // the same times the form's zero point, negative
};

// The part of the sums that zero points subtract, of eight columns from `c` on.
template <int kRows>
[[gnu::always_inline]] inline __m256i ZeroPart256(const PanelForm& form,
                                                  const NarrowGroup256<kRows>& group,
                                                  const PanelReader256& reader, int c, int row) {
  if (!form.zeros) return Broadcast256(group.zeros + row);
  const __m256i part = _mm256_mullo_epi32(reader.Zeros(form, c), Broadcast256(group.sums + row));
  return _mm256_sub_epi32(_mm256_setzero_si256(), part);
}

// Adds the sums of a group, of eight columns from `c` on, to a tile.
template <int kRows, int kSlices>
[[gnu::always_inline]] inline void FoldGroup256(const PanelForm& form,
                                                const NarrowGroup256<kRows>& group,
                                                const PanelReader256& reader, int column,
                                                const Sums256<kRows, kSlices>& sums, float* tile) {
  PENSTOCK_UNROLL
  for (int s = 0; s < kSlices; ++s) {
    const int c = column + 8 * s;
    const __m256 scales = reader.Scales(form, group.in_run, c);
    const __m256 offsets =
        form.offsets ? reader.Offsets(form, group.in_run, c) : _mm256_setzero_ps();
    PENSTOCK_UNROLL
    for (int r = 0; r < kRows; ++r) {
      float* target = tile + r * kColumns + c;
      __m256 total =
          _mm256_fmadd_ps(_mm256_cvtepi32_ps(sums[r][s]), scales, _mm256_loadu_ps(target));
      if (form.offsets) {
        const __m256 row_sum = _mm256_cvtepi32_ps(Broadcast256(group.sums + r));
        total = _mm256_fmadd_ps(row_sum, offsets, total);
      }
      _mm256_storeu_ps(target, total);
    }
  }
}

// Adds the products of one group of a panel to a tile.
template <Codes kCodes, int kRows>
[[gnu::always_inline]] inline void AddGroup256(const PanelForm& form,
                                               const NarrowGroup256<kRows>& group, __m256i table,
                                               int64_t ahead, const PanelReader256& reader,
                                               float* tile) {
  constexpr int kSlices = kRows == 1 ? 4 : kRows == 2 ? 2 : 1;
  for (int v = 0; v < 4; v += kSlices) {
    const std::byte* codes = reader.codes + 32 * v;
    Sums256<kRows, kSlices> sums;
    PENSTOCK_UNROLL
    for (int r = 0; r < kRows; ++r) {
      PENSTOCK_UNROLL
      for (int s = 0; s < kSlices; ++s) {
        sums[r][s] = ZeroPart256<kRows>(form, group, reader, 8 * (v + s), r);
      }
    }
    if constexpr (kCodes == Codes::kNibbles) {
      AddNibbleGroup256<kRows, kSlices>(codes, form.group, group.x, ahead, sums);
    } else {
      AddByteGroup256<kCodes, kRows, kSlices>(
          codes, form.group, table, reinterpret_cast<const int16_t*>(group.x), ahead, sums);
    }
    FoldGroup256<kRows, kSlices>(form, group, reader, 8 * v, sums, tile);
  }
}

template <Codes kCodes, int kRows>
void NarrowPanels256(const NarrowRows& rows, const PanelForm& form, int count,
                     const std::byte* const* panels, float* tiles) {
  const __m256i table = TableIn(form);
  PanelReader256 readers[kNarrowRows];
  for (int n = 0; n < count; ++n) readers[n].codes = panels[n];
  for (int i = 0; i < count * kRows * kColumns; i += 8) {
    _mm256_storeu_ps(tiles + i, _mm256_setzero_ps());
  }
  NarrowGroup256<kRows> group{.in_run = 0, .x = rows.planes, .sums = rows.sums, .zeros = {}};
  for (int64_t g = 0; g < rows.groups; ++g) {
    for (int r = 0; r < kRows; ++r) group.zeros[r] = -form.zero * group.sums[r];
    for (int n = 0; n < count; ++n) {
      if (group.in_run == 0) readers[n].StartRun(form, rows.ahead);
      AddGroup256<kCodes, kRows>(form, group, table, rows.ahead, readers[n],
                                 tiles + n * kRows * kColumns);
      readers[n].codes += form.code_bytes;
    }
    group.x += 2 * form.group * kRows;
    group.sums += kRows;
    if (++group.in_run == form.run) group.in_run = 0;
  }
}

template <Codes kCodes, int kRows = kNarrowRows>
void NarrowCodes256(const NarrowRows& rows, const PanelForm& form, int count,
                    const std::byte* const* panels, float* tiles) {
  if constexpr (kRows > 0) {
    if (rows.rows == kRows) {
      return NarrowPanels256<kCodes, kRows>(rows, form, count, panels, tiles);
    }
    NarrowCodes256<kCodes, kRows - 1>(rows, form, count, panels, tiles);
  }
}

}  // namespace

void Narrow256(const NarrowRows& rows, const PanelForm& form, int count,
               const std::byte* const* panels, float* tiles) {
  switch (form.codes) {
    case Codes::kBytes:
      return NarrowCodes256<Codes::kBytes>(rows, form, count, panels, tiles);
    case Codes::kNibbles:
      return NarrowCodes256<Codes::kNibbles>(rows, form, count, panels, tiles);
    case Codes::kTable:
      return NarrowCodes256<Codes::kTable>(rows, form, count, panels, tiles);
    case Codes::kFive:
      return NarrowCodes256<Codes::kFive>(rows, form, count, panels, tiles);
    case Codes::kSix:
      return NarrowCodes256<Codes::kSix>(rows, form, count, panels, tiles);
  }
}

// Products of 4-bit integers with bytes fit in 16 bits, those of other codes do not.
bool TakesPlanes256(const PanelForm& form) { return form.codes == Codes::kNibbles; }

}  // namespace penstock::simd
