#pragma once

#include <cstdint>
#include <span>

#include "kernels/bf16.h"

// The inner loops of the lossless KV codecs and of the entropy coder, one table of functions per
// instruction set. Every table gives the same bytes.

namespace penstock {

enum class Isa;

inline constexpr int kRansSymbols = 16;
inline constexpr int kRansSlots = 256;
inline constexpr int kRansLanes = 64;
inline constexpr uint32_t kRansLow = uint32_t{1} << 15;  // states lie in [kRansLow, kRansLow << 16)

// A lossless payload is a row of tiles of kLx16Tile or kLxrTile elements (the last one of what is
// left, a multiple of 64). A tile starts with a LosslessHead; then, for mode kCoded, follow `coded`
// bytes of codes (lx16: nibbles; lxr: frequencies, states and words), a byte of sign and mantissa
// per element, and the escapes: positions of two bytes, then exponents of one. Tiles are padded to
// 16 bytes, so that a device can load them in vectors.
enum class LosslessMode : uint8_t { kCoded = 0, kStored = 1 };
struct LosslessHead {
  uint32_t coded;    // bytes of codes
  uint16_t escapes;  // at most an eighth of the elements
  uint8_t base;      // of the window of exponents, at most kExponentBaseMax
  LosslessMode mode;
  uint64_t zero;
};
static_assert(sizeof(LosslessHead) == 16);
inline constexpr uint32_t kLx16Tile = 4096;
inline constexpr uint32_t kLxrTile = 32768;
inline constexpr int kExponentBaseMax = 240;

// A distribution over 16 symbols in 256 slots, with what coding needs of it.
struct RansTable {
  alignas(64) uint32_t frequency[kRansSymbols];
  alignas(64) uint32_t start[kRansSymbols];       // the sum of the frequencies before
  alignas(64) uint32_t reciprocal[kRansSymbols];  // ceil(2^(32 + shift) / frequency)
  alignas(64) uint32_t shift[kRansSymbols];       // ceil(log2(frequency)) - 1; 0 for frequency 1
  alignas(64) uint8_t symbol[kRansSlots];
  // symbol | frequency << 8 | (slot - start[symbol]) << 16
  alignas(64) uint32_t slot[kRansSlots];
};
// False unless every frequency is at least 1 and they add up to 256.
bool MakeRansTable(std::span<const uint8_t, kRansSymbols> frequencies, RansTable& table);
// The frequencies nearest to `counts`, each at least 1; all zeros give the uniform distribution.
void NormaliseRansFrequencies(std::span<const uint64_t, kRansSymbols> counts,
                              std::span<uint8_t, kRansSymbols> frequencies);

// 64 interleaved coders that share one stream of 16-bit words: symbol i belongs to lane i % 64.
// Within a step of 64, lanes are refilled in ascending order. Encoding starts at kRansLow and at
// the last symbol, decoding must end there.
struct RansStates {
  alignas(64) uint32_t lane[kRansLanes];
};
// In front of the words of a tile of lxr: frequencies and states.
inline constexpr uint32_t kRansHeadBytes = kRansSymbols + sizeof(RansStates);

// A value that the window of exponents does not hold.
struct ExponentEscapes {
  uint16_t* positions;
  uint8_t* exponents;
  int32_t max;  // more end the split; the arrays have room for 64 beyond
};

// Sizes are multiples of 64 and, for split and join, at most 65,536.
struct KvCodecOps {
  // The highest exponent field.
  int (*max_exponent)(const Bf16* values, int64_t size);

  // signs[i] = sign << 7 | mantissa. The code of exponent 0 is 0, of base + 1 .. base + 15 (base at
  // most 240) 1 .. 15; everything else is an escape with code 0. Returns the number of escapes, or
  // a negative number when there are more than escapes.max: then the outputs are void.
  // _nibbles: in each group of 64, byte j of 32 is code[j] | code[j + 32] << 4; else one byte each.
  int32_t (*split_nibbles)(const Bf16* values, int64_t size, int base, uint8_t* signs,
                           uint8_t* codes, const ExponentEscapes& escapes);
  int32_t (*split_bytes)(const Bf16* values, int64_t size, int base, uint8_t* signs, uint8_t* codes,
                         const ExponentEscapes& escapes);
  // The reverse, escapes left at exponent 0.
  void (*join_nibbles)(const uint8_t* signs, const uint8_t* codes, int64_t size, int base,
                       Bf16* values);
  void (*join_bytes)(const uint8_t* signs, const uint8_t* codes, int64_t size, int base,
                     Bf16* values);

  // counts[s] += how often s occurs; symbols are < 16.
  void (*count_symbols)(const uint8_t* symbols, int64_t size, uint64_t* counts);
  // Codes the symbols, last first; the words go below `end`, whose new value is returned. At most
  // 2 bytes a symbol, but up to 64 bytes below the last word are overwritten.
  uint8_t* (*rans_encode)(const uint8_t* symbols, int64_t size, const RansTable& table,
                          RansStates& states, uint8_t* end);
  // Decodes from `words`, returns the first word not read, or null when they would go beyond `end`.
  // Reads, but does not use, up to 64 bytes beyond `end`.
  const uint8_t* (*rans_decode)(const uint8_t* words, const uint8_t* end, int64_t size,
                                const RansTable& table, RansStates& states, uint8_t* symbols);
};

// For kAvx512 also VBMI and VBMI2 are needed; without them it is the one of kAvx2.
const KvCodecOps& KvCodecOpsFor(Isa isa);
const KvCodecOps& ActiveKvCodecOps();

}  // namespace penstock
