// Compiled with AVX-512 F/BW/DQ/VL/VBMI/VBMI2; called only on machines that support all of them.

#include <immintrin.h>

#include "kernels/kv_codec.h"

namespace penstock::simd {
namespace {

int MaxExponent(const Bf16* values, int64_t size) {
  const __m512i magnitude = _mm512_set1_epi16(0x7fff);
  __m512i top[2] = {_mm512_setzero_si512(), _mm512_setzero_si512()};
  for (int64_t i = 0; i < size; i += 64) {
    for (int half = 0; half < 2; ++half) {
      const __m512i bits = _mm512_loadu_si512(values + i + 32 * half);
      top[half] = _mm512_max_epu16(top[half], _mm512_and_si512(bits, magnitude));
    }
  }
  // All values are below 2^15, so the 16-bit halves of 32-bit lanes compare as numbers.
  const __m512i both = _mm512_max_epu16(top[0], top[1]);
  const __m512i even = _mm512_and_si512(both, _mm512_set1_epi32(0xffff));
  const __m512i odd = _mm512_srli_epi32(both, 16);
  return _mm512_reduce_max_epi32(_mm512_max_epi32(even, odd)) >> 7;
}

__m512i EvenBytes() {
  alignas(64) uint8_t index[64];
  for (int i = 0; i < 64; ++i) index[i] = static_cast<uint8_t>(2 * i);
  return _mm512_load_si512(index);
}

void AppendEscapes(__mmask64 mask, int64_t at, const uint8_t* exponents, int32_t& count,
                   const ExponentEscapes& escapes) {
  for (; mask != 0; mask &= mask - 1, ++count) {
    const auto lane = __builtin_ctzll(mask);
    escapes.positions[count] = static_cast<uint16_t>(at + lane);
    escapes.exponents[count] = exponents[lane];
  }
}

template <bool kNibbles>
int32_t Split(const Bf16* values, int64_t size, int base, uint8_t* signs, uint8_t* codes,
              const ExponentEscapes& escapes) {
  const __m512i even = EvenBytes();
  const __m512i odd = _mm512_add_epi8(even, _mm512_set1_epi8(1));
  const __m512i sign = _mm512_set1_epi8(static_cast<char>(0x80));
  const __m512i base_bytes = _mm512_set1_epi8(static_cast<char>(base));
  int32_t count = 0;
  for (int64_t at = 0; at < size; at += 64) {
    const __m512i a = _mm512_loadu_si512(values + at), b = _mm512_loadu_si512(values + at + 32);
    const __m512i low = _mm512_permutex2var_epi8(a, even, b);
    const __m512i high = _mm512_permutex2var_epi8(a, odd, b);
    // Selects sign ? high : low, bit by bit.
    _mm512_storeu_si512(signs + at, _mm512_ternarylogic_epi64(sign, high, low, 0xca));
    const __m512i twice = _mm512_add_epi8(high, high);
    const __m512i exponent =
        _mm512_mask_sub_epi8(twice, _mm512_movepi8_mask(low), twice, _mm512_set1_epi8(-1));
    __m512i code = _mm512_subs_epu8(exponent, base_bytes);
    const __mmask64 above = _mm512_cmpgt_epu8_mask(code, _mm512_set1_epi8(15));
    const __mmask64 below =
        _mm512_testn_epi8_mask(code, code) & _mm512_test_epi8_mask(exponent, exponent);
    const __mmask64 escaped = above | below;
    if (__builtin_expect(escaped != 0, 0)) {
      code = _mm512_mask_mov_epi8(code, above, _mm512_setzero_si512());
      alignas(64) uint8_t exponents[64];
      _mm512_store_si512(exponents, exponent);
      AppendEscapes(escaped, at, exponents, count, escapes);
      if (count > escapes.max) return -1;
    }
    if constexpr (kNibbles) {
      const __m256i upper = _mm256_slli_epi16(_mm512_extracti64x4_epi64(code, 1), 4);
      const __m256i both = _mm256_or_si256(_mm512_castsi512_si256(code), upper);
      _mm256_storeu_si256(reinterpret_cast<__m256i*>(codes + at / 2), both);
    } else {
      _mm512_storeu_si512(codes + at, code);
    }
  }
  return count;
}

// Exponent bytes indexed by code: the upper seven bits, and the lowest bit at the top of a byte.
struct JoinTables {
  __m512i high, low, first, second;
  explicit JoinTables(int base) {
    alignas(16) uint8_t upper[16], lower[16];
    for (int code = 0; code < 16; ++code) {
      const int exponent = code == 0 ? 0 : base + code;
      upper[code] = static_cast<uint8_t>(exponent >> 1);
      lower[code] = static_cast<uint8_t>(exponent << 7);
    }
    high = _mm512_broadcast_i32x4(_mm_load_si128(reinterpret_cast<const __m128i*>(upper)));
    low = _mm512_broadcast_i32x4(_mm_load_si128(reinterpret_cast<const __m128i*>(lower)));
    alignas(64) uint8_t index[64];
    for (int i = 0; i < 64; ++i) index[i] = static_cast<uint8_t>((i & 1) * 64 + i / 2);
    first = _mm512_load_si512(index);
    second = _mm512_add_epi8(first, _mm512_set1_epi8(32));
  }
};

inline void JoinGroup(const JoinTables& tables, const uint8_t* signs, __m512i code, Bf16* values) {
  const __m512i sign = _mm512_set1_epi8(static_cast<char>(0x80));
  const __m512i kept = _mm512_loadu_si512(signs);
  const __m512i upper = _mm512_shuffle_epi8(tables.high, code);
  const __m512i lower = _mm512_shuffle_epi8(tables.low, code);
  const __m512i high = _mm512_ternarylogic_epi64(sign, kept, upper, 0xca);
  const __m512i low = _mm512_ternarylogic_epi64(sign, lower, kept, 0xca);
  _mm512_storeu_si512(values, _mm512_permutex2var_epi8(low, tables.first, high));
  _mm512_storeu_si512(values + 32, _mm512_permutex2var_epi8(low, tables.second, high));
}

void JoinNibbles(const uint8_t* signs, const uint8_t* codes, int64_t size, int base, Bf16* values) {
  const JoinTables tables(base);
  const __m256i mask = _mm256_set1_epi8(15);
  for (int64_t at = 0; at < size; at += 64) {
    const __m256i both = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(codes + at / 2));
    const __m256i lower = _mm256_and_si256(both, mask);
    const __m256i upper = _mm256_and_si256(_mm256_srli_epi16(both, 4), mask);
    JoinGroup(tables, signs + at, _mm512_inserti64x4(_mm512_castsi256_si512(lower), upper, 1),
              values + at);
  }
}

void JoinBytes(const uint8_t* signs, const uint8_t* codes, int64_t size, int base, Bf16* values) {
  const JoinTables tables(base);
  for (int64_t at = 0; at < size; at += 64) {
    JoinGroup(tables, signs + at, _mm512_loadu_si512(codes + at), values + at);
  }
}

void CountSymbols(const uint8_t* symbols, int64_t size, uint64_t* counts) {
  uint64_t local[kRansSymbols] = {};
  for (int64_t at = 0; at < size; at += 64) {
    const __m512i group = _mm512_loadu_si512(symbols + at);
#pragma GCC unroll 16
    for (int s = 0; s < kRansSymbols; ++s) {
      const __mmask64 equal = _mm512_cmpeq_epi8_mask(group, _mm512_set1_epi8(static_cast<char>(s)));
      local[s] += static_cast<uint64_t>(__builtin_popcountll(equal));
    }
  }
  for (int s = 0; s < kRansSymbols; ++s) counts[s] += local[s];
}

// The high halves of the products of unsigned 32-bit lanes.
inline __m512i MultiplyHigh(__m512i a, __m512i b) {
  const __m512i even = _mm512_srli_epi64(_mm512_mul_epu32(a, b), 32);
  const __m512i odd = _mm512_mul_epu32(_mm512_srli_epi64(a, 32), _mm512_srli_epi64(b, 32));
  return _mm512_mask_mov_epi32(even, 0xaaaa, odd);
}

uint8_t* RansEncode(const uint8_t* symbols, int64_t size, const RansTable& table,
                    RansStates& states, uint8_t* end) {
  const __m512i frequencies = _mm512_load_si512(table.frequency);
  const __m512i starts = _mm512_load_si512(table.start);
  const __m512i reciprocals = _mm512_load_si512(table.reciprocal);
  const __m512i shifts = _mm512_load_si512(table.shift);
  const __m512i slots = _mm512_set1_epi32(kRansSlots), one = _mm512_set1_epi32(1);
  __m512i state[4];
  for (int k = 0; k < 4; ++k) state[k] = _mm512_load_si512(states.lane + 16 * k);
  for (int64_t at = size - 64; at >= 0; at -= 64) {
#pragma GCC unroll 4
    for (int k = 3; k >= 0; --k) {
      const __m512i symbol = _mm512_cvtepu8_epi32(
          _mm_loadu_si128(reinterpret_cast<const __m128i*>(symbols + at + 16 * k)));
      const __m512i f = _mm512_permutexvar_epi32(symbol, frequencies);
      const __m512i x = state[k];
      const __mmask16 full = _mm512_cmpge_epu32_mask(x, _mm512_slli_epi32(f, 23));
      const __m512i words = _mm512_maskz_compress_epi32(full, x);
      const int count = __builtin_popcount(full);
      end -= 2 * count;
      _mm256_mask_storeu_epi16(end, static_cast<__mmask16>((1u << count) - 1),
                               _mm512_cvtepi32_epi16(words));
      const __m512i z = _mm512_mask_srli_epi32(x, full, x, 16);
      __m512i quotient =
          _mm512_srlv_epi32(MultiplyHigh(z, _mm512_permutexvar_epi32(symbol, reciprocals)),
                            _mm512_permutexvar_epi32(symbol, shifts));
      quotient = _mm512_mask_mov_epi32(quotient, _mm512_cmpeq_epi32_mask(f, one), z);
      // The rANS encoding step: z / f * 256 + z % f + start.
      const __m512i rest = _mm512_add_epi32(z, _mm512_permutexvar_epi32(symbol, starts));
      state[k] = _mm512_add_epi32(rest, _mm512_mullo_epi32(quotient, _mm512_sub_epi32(slots, f)));
    }
  }
  for (int k = 0; k < 4; ++k) _mm512_store_si512(states.lane + 16 * k, state[k]);
  return end;
}

struct Decoder {
  __m512i frequencies, starts, symbols[4], low_bytes;

  explicit Decoder(const RansTable& table)
      : frequencies(_mm512_load_si512(table.frequency)), starts(_mm512_load_si512(table.start)) {
    for (int i = 0; i < 4; ++i) symbols[i] = _mm512_load_si512(table.symbol + 64 * i);
    alignas(64) uint8_t index[64];
    for (int i = 0; i < 64; ++i) index[i] = static_cast<uint8_t>(i % 32 * 4);
    low_bytes = _mm512_load_si512(index);
  }

  // Decodes 64 symbols and refills the states. Reads up to 128 bytes from `words`.
  inline const uint8_t* Step(__m512i* state, const uint8_t* words, uint8_t* output) const {
    const __m512i front = _mm512_permutex2var_epi8(state[0], low_bytes, state[1]);
    const __m512i back = _mm512_permutex2var_epi8(state[2], low_bytes, state[3]);
    const __m512i slot = _mm512_inserti64x4(front, _mm512_castsi512_si256(back), 1);
    const __m512i symbol = _mm512_mask_blend_epi8(
        _mm512_movepi8_mask(slot), _mm512_permutex2var_epi8(symbols[0], slot, symbols[1]),
        _mm512_permutex2var_epi8(symbols[2], slot, symbols[3]));
    _mm512_storeu_si512(output, symbol);
    Advance(state[0], _mm512_castsi512_si128(symbol), words);
    Advance(state[1], _mm512_extracti32x4_epi32(symbol, 1), words);
    Advance(state[2], _mm512_extracti32x4_epi32(symbol, 2), words);
    Advance(state[3], _mm512_extracti32x4_epi32(symbol, 3), words);
    return words;
  }

  inline void Advance(__m512i& state, __m128i symbol, const uint8_t*& words) const {
    const __m512i y = _mm512_cvtepu8_epi32(symbol);
    const __m512i slot = _mm512_and_si512(state, _mm512_set1_epi32(kRansSlots - 1));
    const __m512i bias = _mm512_sub_epi32(slot, _mm512_permutexvar_epi32(y, starts));
    const __m512i product =
        _mm512_mullo_epi32(_mm512_permutexvar_epi32(y, frequencies), _mm512_srli_epi32(state, 8));
    const __m512i x = _mm512_add_epi32(product, bias);
    const __mmask16 empty = _mm512_cmplt_epu32_mask(x, _mm512_set1_epi32(kRansLow));
    const __m512i next =
        _mm512_cvtepu16_epi32(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(words)));
    const __m512i refill = _mm512_maskz_expand_epi32(empty, next);
    words += 2 * __builtin_popcount(empty);
    state = _mm512_mask_or_epi32(x, empty, _mm512_slli_epi32(x, 16), refill);
  }
};

const uint8_t* RansDecode(const uint8_t* words, const uint8_t* end, int64_t size,
                          const RansTable& table, RansStates& states, uint8_t* symbols) {
  constexpr int64_t kReadMax = 128;  // most bytes that one step reads
  const Decoder decoder(table);
  __m512i state[4];
  for (int k = 0; k < 4; ++k) state[k] = _mm512_load_si512(states.lane + 16 * k);
  int64_t at = 0;
  for (; at < size && end - words >= kReadMax; at += 64) {
    words = decoder.Step(state, words, symbols + at);
  }
  if (at < size) {  // The last steps decode from a padded copy, where reading too far is safe.
    uint8_t padded[2 * kReadMax] = {};
    const int64_t left = end - words;
    if (left > 0) __builtin_memcpy(padded, words, static_cast<size_t>(left));
    const uint8_t* next = padded;
    for (; at < size && next - padded <= left; at += 64) {
      next = decoder.Step(state, next, symbols + at);
    }
    if (next - padded > left) return nullptr;
    words += next - padded;
  }
  for (int k = 0; k < 4; ++k) _mm512_store_si512(states.lane + 16 * k, state[k]);
  return words;
}

}  // namespace

extern const KvCodecOps kAvx512KvCodec = {
    .max_exponent = MaxExponent,
    .split_nibbles = Split<true>,
    .split_bytes = Split<false>,
    .join_nibbles = JoinNibbles,
    .join_bytes = JoinBytes,
    .count_symbols = CountSymbols,
    .rans_encode = RansEncode,
    .rans_decode = RansDecode,
};

}  // namespace penstock::simd
