// Plain C++: defines the bitstream that the other files reproduce.

#include "kernels/kv_codec.h"

namespace penstock::simd {
namespace {

int MaxExponent(const Bf16* values, int64_t size) {
  uint16_t top = 0;
  for (int64_t i = 0; i < size; ++i) {
    const auto magnitude = static_cast<uint16_t>(values[i].bits & 0x7fff);
    top = magnitude > top ? magnitude : top;
  }
  return top >> 7;
}

// Splits one group of 64 values; returns the number of escapes so far.
int32_t SplitGroup(const Bf16* values, int64_t at, int base, uint8_t* signs, uint8_t* codes,
                   const ExponentEscapes& escapes, int32_t count) {
  for (int i = 0; i < 64; ++i) {
    const uint16_t bits = values[i].bits;
    const int exponent = bits >> 7 & 0xff;
    signs[i] = static_cast<uint8_t>((bits >> 8 & 0x80) | (bits & 0x7f));
    const int code = exponent - base;
    const bool inside = code >= 1 && code <= 15;
    codes[i] = static_cast<uint8_t>(inside ? code : 0);
    if (!inside && exponent != 0) {
      escapes.positions[count] = static_cast<uint16_t>(at + i);
      escapes.exponents[count] = static_cast<uint8_t>(exponent);
      ++count;
    }
  }
  return count;
}

template <bool kNibbles>
int32_t Split(const Bf16* values, int64_t size, int base, uint8_t* signs, uint8_t* codes,
              const ExponentEscapes& escapes) {
  int32_t count = 0;
  for (int64_t at = 0; at < size; at += 64) {
    uint8_t group[64];
    count = SplitGroup(values + at, at, base, signs + at, group, escapes, count);
    if (count > escapes.max) return -1;
    if constexpr (kNibbles) {
      for (int j = 0; j < 32; ++j) {
        codes[at / 2 + j] = static_cast<uint8_t>(group[j] | group[j + 32] << 4);
      }
    } else {
      for (int j = 0; j < 64; ++j) codes[at + j] = group[j];
    }
  }
  return count;
}

Bf16 Joined(uint8_t sign, int code, int base) {
  const int exponent = code == 0 ? 0 : base + code;
  return {static_cast<uint16_t>((sign & 0x80) << 8 | exponent << 7 | (sign & 0x7f))};
}

void JoinNibbles(const uint8_t* signs, const uint8_t* codes, int64_t size, int base, Bf16* values) {
  for (int64_t at = 0; at < size; at += 64) {
    for (int j = 0; j < 32; ++j) {
      const uint8_t pair = codes[at / 2 + j];
      values[at + j] = Joined(signs[at + j], pair & 15, base);
      values[at + j + 32] = Joined(signs[at + j + 32], pair >> 4, base);
    }
  }
}

void JoinBytes(const uint8_t* signs, const uint8_t* codes, int64_t size, int base, Bf16* values) {
  for (int64_t i = 0; i < size; ++i) values[i] = Joined(signs[i], codes[i], base);
}

void CountSymbols(const uint8_t* symbols, int64_t size, uint64_t* counts) {
  for (int64_t i = 0; i < size; ++i) ++counts[symbols[i] & 15];
}

// rANS with 8-bit frequencies and 16-bit renormalisation (Duda, arXiv 1311.2540). A state x in
// [2^15, 2^31) emits its low 16 bits if the step would overflow it, then becomes (x / f << 8) + x %
// f + start.
uint8_t* RansEncode(const uint8_t* symbols, int64_t size, const RansTable& table,
                    RansStates& states, uint8_t* end) {
  for (int64_t i = size; i-- > 0;) {
    uint32_t& state = states.lane[i % kRansLanes];
    const uint32_t frequency = table.frequency[symbols[i]];
    if (state >= frequency << 23) {
      const auto word = static_cast<uint16_t>(state);
      end -= sizeof(word);
      __builtin_memcpy(end, &word, sizeof(word));
      state >>= 16;
    }
    state = (state / frequency << 8) + state % frequency + table.start[symbols[i]];
  }
  return end;
}

// The inverse: the low 8 bits of a state select the slot, and a state below 2^15 takes a word.
const uint8_t* RansDecode(const uint8_t* words, const uint8_t* end, int64_t size,
                          const RansTable& table, RansStates& states, uint8_t* symbols) {
  for (int64_t i = 0; i < size; ++i) {
    uint32_t& state = states.lane[i % kRansLanes];
    const uint32_t entry = table.slot[state & 0xff];
    symbols[i] = static_cast<uint8_t>(entry);
    state = (entry >> 8 & 0xff) * (state >> 8) + (entry >> 16);
    if (state < kRansLow) {
      if (end - words < 2) return nullptr;
      uint16_t word;
      __builtin_memcpy(&word, words, sizeof(word));
      words += sizeof(word);
      state = state << 16 | word;
    }
  }
  return words;
}

}  // namespace

extern const KvCodecOps kPortableKvCodec = {
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
