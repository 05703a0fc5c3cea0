#include "base/crc32c.h"

#include <array>
#include <cstring>

#if defined(__x86_64__)
#include <immintrin.h>
#endif

// CRC32C (RFC 3720, appendix B.4) is the remainder modulo P of the message as a polynomial over
// GF(2), least significant bit first: bit 31 of a 32-bit value is x^0.

namespace penstock {
namespace {

constexpr uint32_t kPolynomial = 0x82f63b78;

constexpr uint32_t TimesX(uint32_t value) {
  return (value >> 1) ^ ((value & 1) != 0 ? kPolynomial : 0);
}

constexpr std::array<std::array<uint32_t, 256>, 8> MakeTables() {
  std::array<std::array<uint32_t, 256>, 8> tables{};
  for (uint32_t i = 0; i < 256; ++i) {
    uint32_t value = i;
    for (int bit = 0; bit < 8; ++bit) value = TimesX(value);
    tables[0][i] = value;
  }
  for (size_t t = 1; t < 8; ++t) {
    for (size_t i = 0; i < 256; ++i) {
      const uint32_t before = tables[t - 1][i];
      tables[t][i] = (before >> 8) ^ tables[0][before & 255];
    }
  }
  return tables;
}

uint64_t Load64(const std::byte* bytes) {
  uint64_t value;
  std::memcpy(&value, bytes, sizeof(value));
  return value;
}

// Slicing-by-8 (Kounavis and Berry, 2005): eight table lookups per eight bytes.
uint32_t ExtendPortable(uint32_t crc, const std::byte* bytes, size_t size) {
  static constexpr auto kTables = MakeTables();
  for (; size >= 8; bytes += 8, size -= 8) {
    uint64_t word = Load64(bytes) ^ crc;
    crc = 0;
    for (size_t i = 0; i < 8; ++i, word >>= 8) crc ^= kTables[7 - i][word & 255];
  }
  for (; size > 0; ++bytes, --size) {
    crc = (crc >> 8) ^ kTables[0][(crc ^ static_cast<uint32_t>(*bytes)) & 255];
  }
  return crc;
}

#if defined(__x86_64__)

constexpr uint32_t PowerOfX(uint64_t exponent) {
  uint32_t value = 0x80000000;
  for (uint64_t i = 0; i < exponent; ++i) value = TimesX(value);
  return value;
}

// Advances the state over `kBytes` bytes of zeros: state * x^(8 * kBytes), the recombination of
// interleaved streams in the paper that ExtendThreeLanes names. The carry-less product of two
// 32-bit values is additionally multiplied by x, and the crc instruction multiplies by x^32;
// kFactor compensates for both.
template <size_t kBytes>
__attribute__((target("sse4.2,pclmul"))) uint64_t Shift(uint64_t state) {
  constexpr uint32_t kFactor = PowerOfX(8 * kBytes - 33);
  const __m128i product = _mm_clmulepi64_si128(_mm_cvtsi64_si128(static_cast<int64_t>(state)),
                                               _mm_cvtsi32_si128(static_cast<int>(kFactor)), 0);
  return _mm_crc32_u64(0, static_cast<uint64_t>(_mm_cvtsi128_si64(product)));
}

// Three interleaved streams: the instruction has a latency of three cycles and a throughput of one
// per cycle (Gopal et al., "Fast CRC Computation for iSCSI Polynomial Using CRC32 Instruction",
// Intel, 2011).
template <size_t kLane>
__attribute__((target("sse4.2,pclmul"))) void ExtendThreeLanes(uint64_t& crc,
                                                               const std::byte*& bytes,
                                                               size_t& size) {
  for (; size >= 3 * kLane; bytes += 3 * kLane, size -= 3 * kLane) {
    uint64_t second = 0;
    uint64_t third = 0;
    for (size_t i = 0; i < kLane; i += 8) {
      crc = _mm_crc32_u64(crc, Load64(bytes + i));
      second = _mm_crc32_u64(second, Load64(bytes + kLane + i));
      third = _mm_crc32_u64(third, Load64(bytes + 2 * kLane + i));
    }
    crc = Shift<2 * kLane>(crc) ^ Shift<kLane>(second) ^ third;
  }
}

__attribute__((target("sse4.2,pclmul"))) uint32_t ExtendSse42(uint32_t start,
                                                              const std::byte* bytes, size_t size) {
  uint64_t crc = start;
  ExtendThreeLanes<4096>(crc, bytes, size);
  ExtendThreeLanes<256>(crc, bytes, size);
  for (; size >= 8; bytes += 8, size -= 8) crc = _mm_crc32_u64(crc, Load64(bytes));
  uint32_t tail = static_cast<uint32_t>(crc);
  for (; size > 0; ++bytes, --size) tail = _mm_crc32_u8(tail, static_cast<uint8_t>(*bytes));
  return tail;
}

#endif

using Extend = uint32_t (*)(uint32_t, const std::byte*, size_t);

Extend Fastest() {
#if defined(__x86_64__)
  if (__builtin_cpu_supports("sse4.2") && __builtin_cpu_supports("pclmul")) return ExtendSse42;
#endif
  return ExtendPortable;
}

}  // namespace

uint32_t Crc32cPortable(std::span<const std::byte> bytes, uint32_t seed) {
  return ~ExtendPortable(~seed, bytes.data(), bytes.size());
}

uint32_t Crc32c(std::span<const std::byte> bytes, uint32_t seed) {
  static const Extend kExtend = Fastest();
  return ~kExtend(~seed, bytes.data(), bytes.size());
}

}  // namespace penstock
