#pragma once

#include <cstdint>
#include <span>

#include "kernels/bf16.h"

// The inner loops of the lossless KV codecs and of the rANS entropy coder (asymmetric numeral
// systems: J. Duda, arXiv 1311.2540; interleaved as in F. Giesen, arXiv 1402.3392). There is one
// table of functions per instruction set, and every table produces the same bytes. The bitstream is
// specified in docs/adr/0011-kv-codecs.md.

namespace penstock {

enum class Isa;

inline constexpr int kRansSymbols = 16;
inline constexpr int kRansSlots = 256;
inline constexpr int kRansLanes = 64;
inline constexpr uint32_t kRansLow = uint32_t{1} << 15;  // states are in [kRansLow, kRansLow << 16)

// A lossless payload is a sequence of tiles of kLx16Tile or kLxrTile elements; the last tile has
// the remaining elements, a multiple of 64. A tile starts with a LosslessHead. In mode kCoded
// follow: `coded` bytes of codes (lx16: nibbles; lxr: frequencies, states and words), one byte of
// sign and mantissa per element, and the escapes (all 16-bit positions, then all 8-bit exponents).
// Tiles are padded to 16 bytes so that a GPU can load them as vectors.
enum class LosslessMode : uint8_t { kCoded = 0, kStored = 1 };
struct LosslessHead {
  uint32_t coded;    // size of the codes in bytes
  uint16_t escapes;  // number of escapes; at most an eighth of the elements
  uint8_t base;      // start of the exponent window, at most kExponentBaseMax
  LosslessMode mode;
  uint64_t zero;
};
static_assert(sizeof(LosslessHead) == 16);
inline constexpr uint32_t kLx16Tile = 4096;
inline constexpr uint32_t kLxrTile = 32768;
inline constexpr int kExponentBaseMax = 240;

// A distribution over 16 symbols in 256 slots, with the values that the coder derives from it.
// Plain data; readers may share it.
struct RansTable {
  alignas(64) uint32_t frequency[kRansSymbols];
  alignas(64) uint32_t start[kRansSymbols];       // sum of the frequencies of all lower symbols
  alignas(64) uint32_t reciprocal[kRansSymbols];  // ceil(2^(32 + shift) / frequency)
  alignas(64) uint32_t shift[kRansSymbols];       // ceil(log2(frequency)) - 1; 0 for frequency 1
  alignas(64) uint8_t symbol[kRansSlots];
  // symbol | frequency << 8 | (slot - start[symbol]) << 16
  alignas(64) uint32_t slot[kRansSlots];
};
// Builds the table. Returns false unless every frequency is at least 1 and their sum is 256.
bool MakeRansTable(std::span<const uint8_t, kRansSymbols> frequencies, RansTable& table);
// Sets the frequencies that are nearest to `counts`: each is at least 1 and their sum is 256. If
// all counts are zero, the distribution is uniform.
void NormaliseRansFrequencies(std::span<const uint64_t, kRansSymbols> counts,
                              std::span<uint8_t, kRansSymbols> frequencies);

// The states of 64 interleaved coders that share one stream of 16-bit words; symbol i belongs to
// lane i % 64. Within a step of 64 symbols the lanes are refilled in ascending order. The encoder
// starts every state at kRansLow and codes from the last symbol to the first; a decoder must end
// with every state at kRansLow.
struct RansStates {
  alignas(64) uint32_t lane[kRansLanes];
};
// Size of the frequencies and states that precede the words of an lxr tile, in bytes.
inline constexpr uint32_t kRansHeadBytes = kRansSymbols + sizeof(RansStates);

// Output lists for values whose exponent lies outside the window.
struct ExponentEscapes {
  uint16_t* positions;
  uint8_t* exponents;
  int32_t max;  // more escapes than this end the split; the arrays hold 64 more
};

// One table of functions. Sizes count elements: a multiple of 64 and, for split and join, at most
// 65,536. The functions keep no state; any thread may call them.
struct KvCodecOps {
  // Returns the highest exponent field of the values.
  int (*max_exponent)(const Bf16* values, int64_t size);

  // Splits values into sign-and-mantissa bytes (signs[i] = sign << 7 | mantissa) and exponent
  // codes. Exponent 0 has code 0; exponents base + 1 .. base + 15 (base is at most 240) have codes
  // 1 .. 15; every other exponent is an escape and has code 0. Returns the number of escapes, or a
  // negative number if there are more than escapes.max: then the outputs are undefined.
  // split_nibbles packs two codes a byte: in each group of 64, byte j (of 32) is code[j] | code[j +
  // 32] << 4. split_bytes stores one code a byte.
  int32_t (*split_nibbles)(const Bf16* values, int64_t size, int base, uint8_t* signs,
                           uint8_t* codes, const ExponentEscapes& escapes);
  int32_t (*split_bytes)(const Bf16* values, int64_t size, int base, uint8_t* signs, uint8_t* codes,
                         const ExponentEscapes& escapes);
  // The inverse of split. Escapes are left with exponent 0.
  void (*join_nibbles)(const uint8_t* signs, const uint8_t* codes, int64_t size, int base,
                       Bf16* values);
  void (*join_bytes)(const uint8_t* signs, const uint8_t* codes, int64_t size, int base,
                     Bf16* values);

  // counts[s] += number of occurrences of s. Symbols are below 16.
  void (*count_symbols)(const uint8_t* symbols, int64_t size, uint64_t* counts);
  // Encodes the symbols from the last to the first. Words are written downwards from `end`; returns
  // the address of the lowest word. Writes at most 2 bytes a symbol, but may overwrite up to 64
  // bytes below the lowest word.
  uint8_t* (*rans_encode)(const uint8_t* symbols, int64_t size, const RansTable& table,
                          RansStates& states, uint8_t* end);
  // Decodes `size` symbols from `words`. Returns the first word that was not used, or null if the
  // symbols would need words beyond `end`. Reads, but never uses, up to 64 bytes beyond `end`.
  const uint8_t* (*rans_decode)(const uint8_t* words, const uint8_t* end, int64_t size,
                                const RansTable& table, RansStates& states, uint8_t* symbols);
};

// The table for an instruction set. kAvx512 also needs VBMI and VBMI2; a machine without them gets
// the table of kAvx2.
const KvCodecOps& KvCodecOpsFor(Isa isa);
const KvCodecOps& ActiveKvCodecOps();

}  // namespace penstock
