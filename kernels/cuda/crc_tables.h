#pragma once

#include <array>
#include <cstdint>

// Tables for CRC32C (RFC 3720, appendix B.4; the algorithm of base/crc32c.cc). States are
// polynomials over GF(2) whose bit 31 is x^0.

namespace penstock::cuda {

constexpr uint32_t kCrcPolynomial = 0x82f63b78;

constexpr uint32_t CrcTimesX(uint32_t v) { return (v >> 1) ^ ((v & 1) != 0 ? kCrcPolynomial : 0); }
constexpr uint32_t CrcOverX(uint32_t v) {
  return (v >> 31) != 0 ? ((v ^ kCrcPolynomial) << 1) | 1u : v << 1;
}
constexpr uint32_t CrcMultiply(uint32_t a, uint32_t b) {
  uint32_t product = 0;
  for (int bit = 31; bit >= 0; --bit, b = CrcTimesX(b)) {
    if ((a >> bit & 1) != 0) product ^= b;
  }
  return product;
}
// Returns x^exponent modulo the polynomial, by repeated squaring.
constexpr uint32_t CrcPower(uint64_t exponent) {
  uint32_t result = 0x80000000, square = 0x40000000;
  for (; exponent > 0; exponent /= 2, square = CrcMultiply(square, square)) {
    if (exponent % 2 != 0) result = CrcMultiply(result, square);
  }
  return result;
}

constexpr int kCrcRowBytes = 512;  // 16 bytes for each of 32 lanes
// A warp sums a chunk, or one of its parts.
constexpr int kCrcChunkRows = 32;
constexpr int kCrcParts = 4;
constexpr int kCrcPartRows = kCrcChunkRows / kCrcParts;

// Constants with which a warp adds a row of 512 bytes to its 32 states.
struct CrcTables {
  // [nibble of 16 bytes][value]: the nibble's contribution to the state after a whole row, if the
  // 16 bytes begin the row.
  std::array<uint32_t, 32 * 16> nibbles{};
  // A lane's 16 bytes begin 16 * lane bytes after the start of the row, so its state is advanced
  // that many bytes too far: [parts of the chunk behind the lane's rows][lane], the factor that
  // corrects it and advances the state to the end of the chunk.
  std::array<uint32_t, kCrcParts * 32> lanes{};
};

constexpr CrcTables MakeCrcTables() {
  CrcTables tables;
  for (uint32_t nibble = 0; nibble < 32; ++nibble) {
    const uint32_t word = nibble / 8;
    const uint32_t shift = CrcPower((kCrcRowBytes - 4 * word) * 8);
    for (uint32_t value = 0; value < 16; ++value) {
      tables.nibbles[nibble * 16 + value] = CrcMultiply(value << (4 * (nibble % 8)), shift);
    }
  }
  for (int behind = 0; behind < kCrcParts; ++behind) {
    uint32_t factor = CrcPower(uint64_t{8} * behind * kCrcPartRows * kCrcRowBytes);
    for (int lane = 0; lane < 32; ++lane) {
      tables.lanes[behind * 32 + lane] = factor;
      for (int bit = 0; bit < 16 * 8; ++bit) factor = CrcOverX(factor);
    }
  }
  return tables;
}

}  // namespace penstock::cuda
