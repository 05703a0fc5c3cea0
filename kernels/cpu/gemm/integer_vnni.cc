// Compiled with -mavx512{f,bw,dq,vl,vnni}; called only on machines that support all of them.

#include <immintrin.h>

#include "kernels/cpu/gemm/integer_ops.h"

// The compiler keeps accumulators in registers only if it unrolls their loops early.
#if defined(__clang__)
#define PENSTOCK_UNROLL _Pragma("unroll")
#else
#define PENSTOCK_UNROLL _Pragma("GCC unroll 16")
#endif

namespace penstock::simd {
namespace {

constexpr int kColumns = 32;

// g++ 12 stores every accumulator of the intrinsics in every step of a loop, which halves the speed
// of tiles. Assembly leaves it no choice.
//
// Adds the products of four unsigned and four signed bytes to each lane.
inline void AddBytes(__m512i& sum, __m512i codes, __m512i signed_bytes) {
  asm("vpdpbusd %2, %1, %0" : "+v"(sum) : "v"(codes), "v"(signed_bytes));
}
// Adds the products of two signed 16-bit integers to each lane.
inline void AddPairs(__m512i& sum, __m512i a, __m512i b) {
  asm("vpdpwssd %2, %1, %0" : "+v"(sum) : "v"(a), "v"(b));
}

inline __m512i Broadcast(const void* word) {
  int32_t value;
  __builtin_memcpy(&value, word, sizeof(value));
  return _mm512_set1_epi32(value);
}

// Prefetches a line into the second-level cache: the hardware prefetcher leaves a part of the
// memory bandwidth unused.
inline void PrefetchCodes(const std::byte* line) {
  _mm_prefetch(reinterpret_cast<const char*>(line), _MM_HINT_T1);
}

inline __m512 LoadHalves(const std::byte* halves, int v) {
  return _mm512_cvtph_ps(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(halves) + v));
}
inline __m512 LoadFloats(const std::byte* floats, int v) {
  return _mm512_loadu_ps(reinterpret_cast<const float*>(floats) + 16 * v);
}

// Factors times the integers of one group.
inline __m512 LoadTwoLevel(const std::byte* factors, const std::byte* integers, int v) {
  const __m128i bytes = _mm_loadu_si128(reinterpret_cast<const __m128i*>(integers) + v);
  return _mm512_mul_ps(LoadHalves(factors, v), _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(bytes)));
}

// The scales and offsets of 16 columns, of group `i` of a run.
inline __m512 LoadScales(const PanelForm& form, const std::byte* head, int i, int v) {
  const std::byte* scales = head + form.scales_at;
  if (form.scale == ScaleType::kTwoLevel) return LoadTwoLevel(head, scales + kColumns * i, v);
  if (form.scale == ScaleType::kF32) return LoadFloats(scales, v);
  if (form.scale == ScaleType::kF16) return LoadHalves(scales, v);
  const __m256i bits = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(scales) + v);
  return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(bits), 16));
}
inline __m512 LoadOffsets(const PanelForm& form, const std::byte* head, int i, int v) {
  const std::byte* offsets = head + form.offsets_at;
  if (form.scale != ScaleType::kTwoLevel) return LoadFloats(offsets, v);
  return LoadTwoLevel(head + kOffsetFactorsAt, offsets + kColumns * i, v);
}

// The zero points of 16 columns as 32-bit integers.
inline __m512i LoadZeros(const std::byte* zeros, int v) {
  return _mm512_cvtepu8_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(zeros) + v));
}

float Magnitude512(const float* x, int64_t size) {
  const __m512i mask = _mm512_set1_epi32(0x7fffffff);
  __m512i max = _mm512_setzero_si512();
  for (int64_t i = 0; i < size; i += 16) {
    const auto part = static_cast<__mmask16>(size - i < 16 ? (1u << (size - i)) - 1 : 0xffffu);
    max = _mm512_max_epi32(max, _mm512_and_si512(_mm512_maskz_loadu_epi32(part, x + i), mask));
  }
  const int32_t top = _mm512_reduce_max_epi32(max);
  float magnitude;
  __builtin_memcpy(&magnitude, &top, sizeof(top));
  return magnitude;
}

void Quantise512(const float* x, int64_t size, float factor, int16_t* codes) {
  const __m512 f = _mm512_set1_ps(factor);
  for (int64_t i = 0; i < size; i += 16) {
    const auto part = static_cast<__mmask16>(size - i < 16 ? (1u << (size - i)) - 1 : 0xffffu);
    const __m512i rounded =
        _mm512_cvtps_epi32(_mm512_mul_ps(_mm512_maskz_loadu_ps(part, x + i), f));
    _mm256_mask_storeu_epi16(codes + i, part, _mm512_cvtepi32_epi16(rounded));
  }
}

// The table of a form's codes, once for each quarter of a register.
inline __m512i TableIn(const PanelForm& form) {
  if (form.table == nullptr) return _mm512_setzero_si512();
  return _mm512_broadcast_i32x4(_mm_loadu_si128(reinterpret_cast<const __m128i*>(form.table)));
}

// The bits of `word` from `first` on at the place of a byte's bit 4, with others around them.
inline __m512i AtBit4(__m512i word, int first) {
  return first < 4 ? _mm512_slli_epi16(word, 4 - first) : _mm512_srli_epi16(word, first - 4);
}

// Ands `bits` with `mask`, and adds them to `low`, which has none of them.
inline __m512i WithBits(__m512i low, __m512i bits, __m512i mask) {
  return _mm512_ternarylogic_epi64(low, bits, mask, 0xf8);  // low | (bits & mask)
}

// Unpacks the codes of one group. `table`: of codes that stand for integers.
template <Codes kCodes>
void UnpackGroup512(const std::byte* codes, int group, const __m512i (&zeros)[2], __m512i table,
                    int16_t* weights) {
  constexpr CodesUnit kUnit = kUnitOf<kCodes>;
  const __m512i mask = _mm512_set1_epi16(kCodes == Codes::kBytes ? 255 : 15);
  const __m512i byte = _mm512_set1_epi16(255);
  const __m512i high_mask = _mm512_set1_epi16(((1 << kUnit.high_bits) - 1) << 4);
  for (int i = 0; i < group;
       i += kUnit.inputs, codes += kUnit.words * 4 * kColumns, weights += kUnit.inputs * kColumns) {
    PENSTOCK_UNROLL
    for (int v = 0; v < 2; ++v) {
      PENSTOCK_UNROLL
      for (int w = 0; w < kUnit.words; ++w) {
        PrefetchCodes(codes + 4 * kColumns * w + 64 * v + kCodesAhead);
      }
      __m512i high = _mm512_setzero_si512();
      if constexpr (kUnit.high_bits > 0) {
        high = _mm512_loadu_si512(codes + 4 * kColumns * kUnit.low_words + 64 * v);
      }
      PENSTOCK_UNROLL
      for (int pair = 0; pair < 2 * kUnit.parts; ++pair) {
        // Pairs (0, 2), (1, 3), then (4, 6), (5, 7), and so on.
        const int part = pair / 2, in_byte = pair % 2 * 8;
        const __m512i word = _mm512_loadu_si512(codes + 4 * kColumns * (part / 2) + 64 * v);
        __m512i code = _mm512_and_si512(_mm512_srli_epi16(word, in_byte + part % 2 * 4), mask);
        if constexpr (kCodes == Codes::kTable) {
          code = _mm512_and_si512(_mm512_shuffle_epi8(table, code), byte);
        }
        if constexpr (kUnit.high_bits > 0) {
          code = WithBits(code, AtBit4(high, in_byte + part * kUnit.high_bits), high_mask);
        }
        _mm512_storeu_si512(weights + pair * 2 * kColumns + 32 * v,
                            _mm512_sub_epi16(code, zeros[v]));
      }
    }
  }
}

void UnpackCodes512(const PanelForm& form, const std::byte* codes, const __m512i (&zeros)[2],
                    __m512i table, int16_t* weights) {
  switch (form.codes) {
    case Codes::kBytes:
      return UnpackGroup512<Codes::kBytes>(codes, form.group, zeros, table, weights);
    case Codes::kNibbles:
      return UnpackGroup512<Codes::kNibbles>(codes, form.group, zeros, table, weights);
    case Codes::kTable:
      return UnpackGroup512<Codes::kTable>(codes, form.group, zeros, table, weights);
    case Codes::kFive:
      return UnpackGroup512<Codes::kFive>(codes, form.group, zeros, table, weights);
    case Codes::kSix:
      return UnpackGroup512<Codes::kSix>(codes, form.group, zeros, table, weights);
  }
}

void Unpack512(const PanelForm& form, const std::byte* panel, int64_t groups,
               const UnpackedGroups& target) {
  int16_t* weights = target.weights;
  const __m512i table = TableIn(form);
  const std::byte *head = panel, *codes = panel;
  int in_run = 0;
  for (int64_t g = 0; g < groups; ++g, codes += form.code_bytes) {
    if (in_run == 0) {
      head = codes;
      codes += form.head_bytes;
    }
    __m512i zeros[2];
    for (int v = 0; v < 2; ++v) {
      _mm512_storeu_ps(target.scales + g * kColumns + 16 * v, LoadScales(form, head, in_run, v));
      if (form.offsets) {
        _mm512_storeu_ps(target.offsets + g * kColumns + 16 * v,
                         LoadOffsets(form, head, in_run, v));
      }
      zeros[v] = _mm512_set1_epi16(static_cast<int16_t>(form.zero));
      if (!form.zeros) continue;
      const __m512i one = LoadZeros(head + form.zeros_at, v);
      zeros[v] = _mm512_or_si512(one, _mm512_slli_epi32(one, 16));
    }
    UnpackCodes512(form, codes, zeros, table, weights);
    weights += int64_t{form.group} * kColumns;
    if (++in_run == form.run) in_run = 0;
  }
}

// Adds the offsets' part of one group to the tile of a panel.
inline void AddOffsets512(const int32_t* sums, int rows, const float* offsets, float* tile) {
  for (int r = 0; r < rows; ++r) {
    const __m512 sum = _mm512_set1_ps(static_cast<float>(sums[r]));
    for (float* target = tile + r * kColumns; target < tile + (r + 1) * kColumns; target += 16) {
      const __m512 offset = _mm512_loadu_ps(offsets + (target - tile) % kColumns);
      _mm512_storeu_ps(target, _mm512_fmadd_ps(sum, offset, _mm512_loadu_ps(target)));
    }
  }
}

template <int kRows>
void WideRows(const WideProduct& product) {
  const int16_t* a = product.input;
  const int16_t* weights = product.panel.weights;
  const float* scales = product.panel.scales;
  const int64_t pairs = product.pairs;
  float* tile = product.tile;
  for (int64_t g = 0; g < product.groups; ++g, scales += kColumns) {
    __m512i sums[kRows][2];
    PENSTOCK_UNROLL
    for (int r = 0; r < kRows; ++r) sums[r][0] = sums[r][1] = _mm512_setzero_si512();
    for (int64_t p = 0; p < pairs; ++p, a += 2 * kRows, weights += 2 * kColumns) {
      const __m512i left = _mm512_loadu_si512(weights), right = _mm512_loadu_si512(weights + 32);
      PENSTOCK_UNROLL
      for (int r = 0; r < kRows; ++r) {
        const __m512i x = Broadcast(a + 2 * r);
        AddPairs(sums[r][0], x, left);
        AddPairs(sums[r][1], x, right);
      }
    }
    const __m512 scale[2] = {_mm512_loadu_ps(scales), _mm512_loadu_ps(scales + 16)};
    PENSTOCK_UNROLL
    for (int r = 0; r < kRows; ++r) {
      PENSTOCK_UNROLL
      for (int v = 0; v < 2; ++v) {
        float* target = tile + r * kColumns + 16 * v;
        const __m512 sum = _mm512_cvtepi32_ps(sums[r][v]);
        _mm512_storeu_ps(target, _mm512_fmadd_ps(sum, scale[v], _mm512_loadu_ps(target)));
      }
    }
    if (product.panel.offsets == nullptr) continue;
    AddOffsets512(product.sums + g * kRows, kRows, product.panel.offsets + g * kColumns, tile);
  }
}

template <int kRows = 12>
void Wide512(const WideProduct& product) {
  if constexpr (kRows > 0) {
    if (product.rows == kRows) return WideRows<kRows>(product);
    Wide512<kRows - 1>(product);
  }
}

// Multiplies four inputs of kRows rows, whose planes are at `x`, by 32 columns.
template <int kRows>
[[gnu::always_inline]] inline void AddInputs(const int8_t* x, __m512i left, __m512i right,
                                             __m512i (&high)[kRows][2], __m512i (&low)[kRows][2]) {
  PENSTOCK_UNROLL
  for (int r = 0; r < kRows; ++r) {
    const __m512i x_high = Broadcast(x + 8 * r), x_low = Broadcast(x + 8 * r + 4);
    AddBytes(high[r][0], left, x_high);
    AddBytes(high[r][1], right, x_high);
    AddBytes(low[r][0], left, x_low);
    AddBytes(low[r][1], right, x_low);
  }
}

// The zero points' part of a group's sums: zero * sum of the row's activations.
[[gnu::always_inline]] inline __m512i ZeroPart(const PanelForm& form, const std::byte* head, int v,
                                               int32_t sum) {
  if (!form.zeros) return _mm512_set1_epi32(form.zero * sum);
  return _mm512_mullo_epi32(LoadZeros(head + form.zeros_at, v), _mm512_set1_epi32(sum));
}

// Adds the sums of group `i` of a run to the tile of a panel.
template <int kRows>
[[gnu::always_inline]] inline void FoldGroup(const PanelForm& form, const std::byte* head, int i,
                                             const int32_t* row_sums,
                                             const __m512i (&high)[kRows][2],
                                             const __m512i (&low)[kRows][2], float* tile) {
  PENSTOCK_UNROLL
  for (int v = 0; v < 2; ++v) {
    const __m512 scale = LoadScales(form, head, i, v);
    const __m512 offset = form.offsets ? LoadOffsets(form, head, i, v) : _mm512_setzero_ps();
    PENSTOCK_UNROLL
    for (int r = 0; r < kRows; ++r) {
      __m512i sum = _mm512_add_epi32(_mm512_slli_epi32(high[r][v], 8), low[r][v]);
      sum = _mm512_sub_epi32(sum, ZeroPart(form, head, v, row_sums[r]));
      float* target = tile + r * kColumns + 16 * v;
      __m512 total = _mm512_fmadd_ps(_mm512_cvtepi32_ps(sum), scale, _mm512_loadu_ps(target));
      if (form.offsets) {
        total = _mm512_fmadd_ps(_mm512_set1_ps(static_cast<float>(row_sums[r])), offset, total);
      }
      _mm512_storeu_ps(target, total);
    }
  }
}

// The integers of 64 codes, four of each of 16 columns: those of part `part` of a unit, whose words
// begin at `words`.
template <Codes kCodes>
[[gnu::always_inline]] inline __m512i Integers(const std::byte* words, int part, __m512i table) {
  constexpr CodesUnit kUnit = kUnitOf<kCodes>;
  __m512i word = _mm512_loadu_si512(words + 4 * kColumns * (part / 2));
  if constexpr (kCodes == Codes::kBytes) return word;
  if (part % 2 == 1) word = _mm512_srli_epi16(word, 4);
  const __m512i nibbles = _mm512_and_si512(word, _mm512_set1_epi8(15));
  if constexpr (kCodes == Codes::kTable) return _mm512_shuffle_epi8(table, nibbles);
  if constexpr (kUnit.high_bits == 0) return nibbles;
  const __m512i high = _mm512_loadu_si512(words + 4 * kColumns * kUnit.low_words);
  return WithBits(nibbles, AtBit4(high, part * kUnit.high_bits),
                  _mm512_set1_epi8(((1 << kUnit.high_bits) - 1) << 4));
}

// Multiplies one part of a unit of kRows rows by 32 columns.
template <Codes kCodes, int kRows>
[[gnu::always_inline]] inline void AddPart(const std::byte* words, int part, const int8_t* x,
                                           __m512i table, __m512i (&high)[kRows][2],
                                           __m512i (&low)[kRows][2]) {
  AddInputs<kRows>(x + 8 * kRows * part, Integers<kCodes>(words, part, table),
                   Integers<kCodes>(words + 64, part, table), high, low);
}

template <Codes kCodes, int kPanels, int kRows>
void NarrowPanels(const NarrowRows& rows, const PanelForm& form, const std::byte* const* panels,
                  float* tiles) {
  constexpr CodesUnit kUnit = kUnitOf<kCodes>;
  constexpr int64_t kUnitBytes = kUnit.words * 4 * kColumns;
  const __m512i table = TableIn(form);
  const std::byte *b[kPanels], *heads[kPanels];
  for (int n = 0; n < kPanels; ++n) b[n] = panels[n];
  for (int i = 0; i < kPanels * kRows * kColumns; i += 16) {
    _mm512_storeu_ps(tiles + i, _mm512_setzero_ps());
  }
  const int8_t* x = rows.planes;
  int in_run = 0;
  for (int64_t g = 0; g < rows.groups; ++g) {
    __m512i high[kPanels][kRows][2], low[kPanels][kRows][2];
    PENSTOCK_UNROLL
    for (int n = 0; n < kPanels; ++n) {
      if (in_run == 0) {
        heads[n] = b[n];
        for (int64_t line = 0; line < form.head_bytes; line += 64)
          PrefetchCodes(b[n] + line + rows.ahead);
        b[n] += form.head_bytes;
      }
      PENSTOCK_UNROLL
      for (int r = 0; r < kRows; ++r) {
        PENSTOCK_UNROLL
        for (int v = 0; v < 2; ++v) high[n][r][v] = low[n][r][v] = _mm512_setzero_si512();
      }
    }
    int64_t at = 0;
    for (int i = 0; i < form.group; i += kUnit.inputs, x += 2 * kUnit.inputs * kRows) {
      PENSTOCK_UNROLL
      for (int n = 0; n < kPanels; ++n) {
        PENSTOCK_UNROLL
        for (int64_t line = 0; line < kUnitBytes; line += 64) {
          PrefetchCodes(b[n] + at + rows.ahead + line);
        }
        if constexpr (kUnit.parts <= 2) {
          PENSTOCK_UNROLL
          for (int part = 0; part < kUnit.parts; ++part) {
            AddPart<kCodes, kRows>(b[n] + at, part, x, table, high[n], low[n]);
          }
        }
      }
      if constexpr (kUnit.parts >
                    2) {  // all panels use a part's activations while registers have them
        PENSTOCK_UNROLL
        for (int part = 0; part < kUnit.parts; ++part) {
          PENSTOCK_UNROLL
          for (int n = 0; n < kPanels; ++n) {
            AddPart<kCodes, kRows>(b[n] + at, part, x, table, high[n], low[n]);
          }
        }
      }
      at += kUnitBytes;
    }
    PENSTOCK_UNROLL
    for (int n = 0; n < kPanels; ++n) {
      FoldGroup<kRows>(form, heads[n], in_run, rows.sums + g * kRows, high[n], low[n],
                       tiles + n * kRows * kColumns);
      b[n] += form.code_bytes;
    }
    if (++in_run == form.run) in_run = 0;
  }
}

template <Codes kCodes>
void NarrowCodes(const NarrowRows& rows, const PanelForm& form, int count,
                 const std::byte* const* panels, float* tiles) {
  if (rows.rows == 1) {
    if (count == 4) return NarrowPanels<kCodes, 4, 1>(rows, form, panels, tiles);
    if (count == 2) return NarrowPanels<kCodes, 2, 1>(rows, form, panels, tiles);
    return NarrowPanels<kCodes, 1, 1>(rows, form, panels, tiles);
  }
  if (rows.rows == 2) {
    if (count == 2) return NarrowPanels<kCodes, 2, 2>(rows, form, panels, tiles);
    return NarrowPanels<kCodes, 1, 2>(rows, form, panels, tiles);
  }
  if (rows.rows == 3) return NarrowPanels<kCodes, 1, 3>(rows, form, panels, tiles);
  return NarrowPanels<kCodes, 1, 4>(rows, form, panels, tiles);
}

void Narrow512(const NarrowRows& rows, const PanelForm& form, int count,
               const std::byte* const* panels, float* tiles) {
  switch (form.codes) {
    case Codes::kBytes:
      return NarrowCodes<Codes::kBytes>(rows, form, count, panels, tiles);
    case Codes::kNibbles:
      return NarrowCodes<Codes::kNibbles>(rows, form, count, panels, tiles);
    case Codes::kTable:
      return NarrowCodes<Codes::kTable>(rows, form, count, panels, tiles);
    case Codes::kFive:
      return NarrowCodes<Codes::kFive>(rows, form, count, panels, tiles);
    case Codes::kSix:
      return NarrowCodes<Codes::kSix>(rows, form, count, panels, tiles);
  }
}

bool TakesPlanes512(const PanelForm&) { return true; }

}  // namespace

extern const IntegerOps kVnniIntegerOps = {.magnitude = Magnitude512,
                                           .quantise = Quantise512,
                                           .unpack = Unpack512,
                                           .multiply_wide = Wide512<12>,
                                           .multiply_narrow = Narrow512,
                                           .takes_planes = TakesPlanes512};

}  // namespace penstock::simd
