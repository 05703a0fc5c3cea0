// Compiled with -mavx2; called only on machines that support AVX2.

#include <immintrin.h>

#include "kernels/kv_codec.h"

namespace penstock::simd {
namespace {

__m256i Load(const void* p) { return _mm256_loadu_si256(static_cast<const __m256i*>(p)); }
void Store(void* p, __m256i a) { _mm256_storeu_si256(static_cast<__m256i*>(p), a); }

int MaxExponent(const Bf16* values, int64_t size) {
  const __m256i magnitude = _mm256_set1_epi16(0x7fff);
  __m256i top[2] = {_mm256_setzero_si256(), _mm256_setzero_si256()};
  for (int64_t i = 0; i < size; i += 32) {
    for (int half = 0; half < 2; ++half) {
      const __m256i bits = _mm256_and_si256(Load(values + i + 16 * half), magnitude);
      top[half] = _mm256_max_epu16(top[half], bits);
    }
  }
  uint16_t lanes[16];
  Store(lanes, _mm256_max_epu16(top[0], top[1]));
  int highest = 0;
  for (const uint16_t lane : lanes) highest = lane > highest ? lane : highest;
  return highest >> 7;
}

// Packs the 16-bit lanes of two registers, all at most 255, into bytes, in order.
inline __m256i Narrow(__m256i a, __m256i b) {
  return _mm256_permute4x64_epi64(_mm256_packus_epi16(a, b), 0xd8);
}

struct SplitHalf {
  __m256i code;
  uint32_t escaped;
  __m256i exponent;
};

inline SplitHalf SplitThirtyTwo(const Bf16* values, __m256i base, uint8_t* signs) {
  const __m256i a = Load(values), b = Load(values + 16);
  const __m256i byte = _mm256_set1_epi16(0xff);
  const __m256i low = Narrow(_mm256_and_si256(a, byte), _mm256_and_si256(b, byte));
  const __m256i high = Narrow(_mm256_srli_epi16(a, 8), _mm256_srli_epi16(b, 8));
  const __m256i sign = _mm256_set1_epi8(static_cast<char>(0x80));
  Store(signs, _mm256_or_si256(_mm256_and_si256(high, sign), _mm256_andnot_si256(sign, low)));
  const __m256i lowest = _mm256_cmpgt_epi8(_mm256_setzero_si256(), low);
  const __m256i exponent = _mm256_sub_epi8(_mm256_add_epi8(high, high), lowest);
  const __m256i code = _mm256_subs_epu8(exponent, base);
  const __m256i fifteen = _mm256_set1_epi8(15), zero = _mm256_setzero_si256();
  const __m256i inside = _mm256_cmpeq_epi8(_mm256_min_epu8(code, fifteen), code);
  const __m256i below =
      _mm256_andnot_si256(_mm256_cmpeq_epi8(exponent, zero), _mm256_cmpeq_epi8(code, zero));
  const auto escaped = static_cast<uint32_t>(
      _mm256_movemask_epi8(_mm256_or_si256(below, _mm256_xor_si256(inside, _mm256_set1_epi8(-1)))));
  return {_mm256_and_si256(code, inside), escaped, exponent};
}

inline void AppendEscapes(const SplitHalf& half, int64_t at, int32_t& count,
                          const ExponentEscapes& escapes) {
  if (__builtin_expect(half.escaped == 0, 1)) return;
  uint8_t exponents[32];
  Store(exponents, half.exponent);
  for (uint32_t mask = half.escaped; mask != 0; mask &= mask - 1, ++count) {
    const int lane = __builtin_ctz(mask);
    escapes.positions[count] = static_cast<uint16_t>(at + lane);
    escapes.exponents[count] = exponents[lane];
  }
}

template <bool kNibbles>
int32_t Split(const Bf16* values, int64_t size, int base, uint8_t* signs, uint8_t* codes,
              const ExponentEscapes& escapes) {
  const __m256i base_bytes = _mm256_set1_epi8(static_cast<char>(base));
  int32_t count = 0;
  for (int64_t at = 0; at < size; at += 64) {
    const SplitHalf a = SplitThirtyTwo(values + at, base_bytes, signs + at);
    const SplitHalf b = SplitThirtyTwo(values + at + 32, base_bytes, signs + at + 32);
    AppendEscapes(a, at, count, escapes);
    AppendEscapes(b, at + 32, count, escapes);
    if (count > escapes.max) return -1;
    if constexpr (kNibbles) {
      Store(codes + at / 2, _mm256_or_si256(a.code, _mm256_slli_epi16(b.code, 4)));
    } else {
      Store(codes + at, a.code);
      Store(codes + at + 32, b.code);
    }
  }
  return count;
}

// Exponent bytes indexed by code: the upper seven bits, and the lowest bit at the top of a byte.
struct JoinTables {
  __m256i high, low;
  explicit JoinTables(int base) {
    alignas(16) uint8_t upper[16], lower[16];
    for (int code = 0; code < 16; ++code) {
      const int exponent = code == 0 ? 0 : base + code;
      upper[code] = static_cast<uint8_t>(exponent >> 1);
      lower[code] = static_cast<uint8_t>(exponent << 7);
    }
    high = _mm256_broadcastsi128_si256(_mm_load_si128(reinterpret_cast<const __m128i*>(upper)));
    low = _mm256_broadcastsi128_si256(_mm_load_si128(reinterpret_cast<const __m128i*>(lower)));
  }
};

inline void JoinThirtyTwo(const JoinTables& tables, const uint8_t* signs, __m256i code,
                          Bf16* values) {
  const __m256i sign = _mm256_set1_epi8(static_cast<char>(0x80));
  const __m256i kept = Load(signs);
  const __m256i high =
      _mm256_or_si256(_mm256_and_si256(kept, sign), _mm256_shuffle_epi8(tables.high, code));
  const __m256i low =
      _mm256_or_si256(_mm256_andnot_si256(sign, kept), _mm256_shuffle_epi8(tables.low, code));
  const __m256i first = _mm256_unpacklo_epi8(low, high);
  const __m256i second = _mm256_unpackhi_epi8(low, high);
  Store(values, _mm256_permute2x128_si256(first, second, 0x20));
  Store(values + 16, _mm256_permute2x128_si256(first, second, 0x31));
}

void JoinNibbles(const uint8_t* signs, const uint8_t* codes, int64_t size, int base, Bf16* values) {
  const JoinTables tables(base);
  const __m256i mask = _mm256_set1_epi8(15);
  for (int64_t at = 0; at < size; at += 64) {
    const __m256i both = Load(codes + at / 2);
    JoinThirtyTwo(tables, signs + at, _mm256_and_si256(both, mask), values + at);
    JoinThirtyTwo(tables, signs + at + 32, _mm256_and_si256(_mm256_srli_epi16(both, 4), mask),
                  values + at + 32);
  }
}

void JoinBytes(const uint8_t* signs, const uint8_t* codes, int64_t size, int base, Bf16* values) {
  const JoinTables tables(base);
  for (int64_t at = 0; at < size; at += 32) {
    JoinThirtyTwo(tables, signs + at, Load(codes + at), values + at);
  }
}

void CountSymbols(const uint8_t* symbols, int64_t size, uint64_t* counts) {
  constexpr int64_t kPiece = 64 * 120;  // byte counters of two groups a step stay below 256
  const __m256i zero = _mm256_setzero_si256();
  for (int64_t first = 0; first < size; first += kPiece) {
    const int64_t last = first + kPiece < size ? first + kPiece : size;
    for (int s = 0; s < kRansSymbols; ++s) {
      const __m256i symbol = _mm256_set1_epi8(static_cast<char>(s));
      __m256i sum = zero;
      for (int64_t at = first; at < last; at += 64) {
        sum = _mm256_sub_epi8(sum, _mm256_cmpeq_epi8(Load(symbols + at), symbol));
        sum = _mm256_sub_epi8(sum, _mm256_cmpeq_epi8(Load(symbols + at + 32), symbol));
      }
      uint64_t parts[4];
      Store(parts, _mm256_sad_epu8(sum, zero));
      counts[s] += parts[0] + parts[1] + parts[2] + parts[3];
    }
  }
}

// Shuffles indexed by the mask of lanes that transfer a word. Encoding: the shuffle that moves the
// selected ones of eight 16-bit words to the end. Decoding: the index of the next word that each
// lane takes.
struct LaneTables {
  alignas(64) uint8_t to_end[256][16];
  alignas(64) uint8_t source[256][8];
};

constexpr LaneTables MakeLaneTables() {
  LaneTables tables{};
  for (int mask = 0; mask < 256; ++mask) {
    int count = 0;
    for (int lane = 0; lane < 8; ++lane) {
      tables.source[mask][lane] = static_cast<uint8_t>(count);
      count += mask >> lane & 1;
    }
    int next = 8 - count;
    for (int lane = 0; lane < 8; ++lane) {
      if ((mask >> lane & 1) == 0) continue;
      tables.to_end[mask][2 * next] = static_cast<uint8_t>(2 * lane);
      tables.to_end[mask][2 * next + 1] = static_cast<uint8_t>(2 * lane + 1);
      ++next;
    }
  }
  return tables;
}
constexpr LaneTables kLanes = MakeLaneTables();

inline __m256i MultiplyHigh(__m256i a, __m256i b) {
  const __m256i even = _mm256_srli_epi64(_mm256_mul_epu32(a, b), 32);
  const __m256i odd = _mm256_mul_epu32(_mm256_srli_epi64(a, 32), _mm256_srli_epi64(b, 32));
  return _mm256_blend_epi32(even, odd, 0xaa);
}

// Returns table[index] for a table of 16 entries in two registers.
inline __m256i LookUp(const __m256i* table, __m256i index, __m256i upper) {
  const __m256 first = _mm256_castsi256_ps(_mm256_permutevar8x32_epi32(table[0], index));
  const __m256 second = _mm256_castsi256_ps(_mm256_permutevar8x32_epi32(table[1], index));
  return _mm256_castps_si256(_mm256_blendv_ps(first, second, _mm256_castsi256_ps(upper)));
}

uint8_t* RansEncode(const uint8_t* symbols, int64_t size, const RansTable& table,
                    RansStates& states, uint8_t* end) {
  alignas(32) uint32_t fields[kRansSymbols];  // frequency | start << 8 | shift << 16
  for (int s = 0; s < kRansSymbols; ++s) {
    fields[s] = table.frequency[s] | table.start[s] << 8 | table.shift[s] << 16;
  }
  const __m256i packed[2] = {Load(fields), Load(fields + 8)};
  const __m256i reciprocals[2] = {Load(table.reciprocal), Load(table.reciprocal + 8)};
  const __m256i byte = _mm256_set1_epi32(0xff), one = _mm256_set1_epi32(1);
  const __m256i slots = _mm256_set1_epi32(kRansSlots), word = _mm256_set1_epi32(0xffff);
  for (int64_t at = size - 64; at >= 0; at -= 64) {
    for (int k = 7; k >= 0; --k) {
      const __m256i symbol = _mm256_cvtepu8_epi32(
          _mm_loadl_epi64(reinterpret_cast<const __m128i*>(symbols + at + 8 * k)));
      const __m256i upper = _mm256_slli_epi32(symbol, 28);
      const __m256i field = LookUp(packed, symbol, upper);
      const __m256i f = _mm256_and_si256(field, byte);
      const __m256i x = Load(states.lane + 8 * k);
      // States and f << 23 are below 2^31, so signed comparisons are correct.
      const __m256i fits = _mm256_cmpgt_epi32(_mm256_slli_epi32(f, 23), x);
      const int full = _mm256_movemask_ps(_mm256_castsi256_ps(fits)) ^ 0xff;
      const __m256i low = _mm256_and_si256(x, word);
      const __m128i words =
          _mm_packus_epi32(_mm256_castsi256_si128(low), _mm256_extracti128_si256(low, 1));
      const __m128i moved = _mm_shuffle_epi8(
          words, _mm_load_si128(reinterpret_cast<const __m128i*>(kLanes.to_end[full])));
      _mm_storeu_si128(reinterpret_cast<__m128i*>(end - 16), moved);
      end -= 2 * __builtin_popcount(static_cast<unsigned>(full));
      const __m256i z = _mm256_blendv_epi8(_mm256_srli_epi32(x, 16), x, fits);
      __m256i quotient = _mm256_srlv_epi32(MultiplyHigh(z, LookUp(reciprocals, symbol, upper)),
                                           _mm256_srli_epi32(field, 16));
      quotient = _mm256_blendv_epi8(quotient, z, _mm256_cmpeq_epi32(f, one));
      const __m256i start = _mm256_and_si256(_mm256_srli_epi32(field, 8), byte);
      const __m256i product = _mm256_mullo_epi32(quotient, _mm256_sub_epi32(slots, f));
      Store(states.lane + 8 * k, _mm256_add_epi32(_mm256_add_epi32(z, start), product));
    }
  }
  return end;
}

// Decodes 8 symbols into the low bytes of the result. Reads 16 bytes from `words`.
inline __m256i DecodeEight(const RansTable& table, uint32_t* lanes, const uint8_t*& words) {
  const __m256i x = Load(lanes);
  const __m256i byte = _mm256_set1_epi32(0xff);
  const __m256i entry = _mm256_i32gather_epi32(reinterpret_cast<const int*>(table.slot),
                                               _mm256_and_si256(x, byte), 4);
  const __m256i f = _mm256_and_si256(_mm256_srli_epi32(entry, 8), byte);
  const __m256i state = _mm256_add_epi32(_mm256_mullo_epi32(f, _mm256_srli_epi32(x, 8)),
                                         _mm256_srli_epi32(entry, 16));
  const __m256i empty = _mm256_cmpgt_epi32(_mm256_set1_epi32(kRansLow), state);
  const int mask = _mm256_movemask_ps(_mm256_castsi256_ps(empty));
  const __m256i next =
      _mm256_cvtepu16_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(words)));
  const __m256i source =
      _mm256_cvtepu8_epi32(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(kLanes.source[mask])));
  const __m256i refill =
      _mm256_or_si256(_mm256_slli_epi32(state, 16), _mm256_permutevar8x32_epi32(next, source));
  Store(lanes, _mm256_blendv_epi8(state, refill, empty));
  words += 2 * __builtin_popcount(static_cast<unsigned>(mask));
  return _mm256_and_si256(entry, byte);
}

inline const uint8_t* DecodeStep(const RansTable& table, RansStates& states, const uint8_t* words,
                                 uint8_t* output) {
  const __m256i order = _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7);
  for (int half = 0; half < 64; half += 32) {
    const __m256i a = DecodeEight(table, states.lane + half, words);
    const __m256i b = DecodeEight(table, states.lane + half + 8, words);
    const __m256i c = DecodeEight(table, states.lane + half + 16, words);
    const __m256i d = DecodeEight(table, states.lane + half + 24, words);
    const __m256i bytes = _mm256_packus_epi16(_mm256_packus_epi32(a, b), _mm256_packus_epi32(c, d));
    Store(output + half, _mm256_permutevar8x32_epi32(bytes, order));
  }
  return words;
}

const uint8_t* RansDecode(const uint8_t* words, const uint8_t* end, int64_t size,
                          const RansTable& table, RansStates& states, uint8_t* symbols) {
  constexpr int64_t kReadMax = 128;  // most bytes that one step reads
  int64_t at = 0;
  for (; at < size && end - words >= kReadMax; at += 64) {
    words = DecodeStep(table, states, words, symbols + at);
  }
  if (at < size) {  // The last steps decode from a padded copy, where reading too far is safe.
    uint8_t padded[2 * kReadMax] = {};
    const int64_t left = end - words;
    if (left > 0) __builtin_memcpy(padded, words, static_cast<size_t>(left));
    const uint8_t* next = padded;
    for (; at < size && next - padded <= left; at += 64) {
      next = DecodeStep(table, states, next, symbols + at);
    }
    if (next - padded > left) return nullptr;
    words += next - padded;
  }
  return words;
}

}  // namespace

extern const KvCodecOps kAvx2KvCodec = {
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
