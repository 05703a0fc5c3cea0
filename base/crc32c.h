#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

namespace penstock {

// CRC32C (Castagnoli; RFC 3720), with the CPU's instruction if it has one. `seed` is the checksum
// of the preceding bytes: Crc32c(b, Crc32c(a)) == Crc32c(ab).
uint32_t Crc32c(std::span<const std::byte> bytes, uint32_t seed = 0);
// The same checksum without special instructions; tests compare the two.
uint32_t Crc32cPortable(std::span<const std::byte> bytes, uint32_t seed = 0);

}  // namespace penstock
