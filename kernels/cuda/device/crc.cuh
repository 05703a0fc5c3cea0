#pragma once

// CRC32C by a warp (table folding as in "slicing", Kounavis and Berry, 2005, with tables of
// nibbles). A CRC is linear, so every lane keeps a state of its own: per row of 512 bytes each lane
// adds 16 bytes by table lookups that also advance the state by a whole row. Every lane has a copy
// of the tables in its own shared memory bank.

#include "kernels/cuda/crc_tables.h"
#include "kernels/cuda/device/device.cuh"

namespace penstock::cuda {

constexpr int kCrcSharedBytes = 32 * 16 * 32 * 4;

// Copies the tables to shared memory. Called by all threads of a block; a barrier must follow.
PENSTOCK_DEVICE void FillCrcTables(const CrcTables& tables, int threads, uint32_t* shared) {
  // A row of the same entry for 32 lanes has eight vectors.
  for (int i = ThreadX(); i < kCrcSharedBytes / 16; i += threads) {
    const uint32_t entry = tables.nibbles[i / 8];
    reinterpret_cast<Words4*>(shared)[i] = {{entry, entry, entry, entry}};
  }
}

struct CrcLane {
  const std::byte* table;
  uint32_t lane;

  PENSTOCK_DEVICE explicit CrcLane(const uint32_t* shared)
      : table(reinterpret_cast<const std::byte*>(shared)),
        lane(static_cast<uint32_t>(ThreadX()) % 32) {}

  // Returns the state after one more row; `words` are this lane's 16 bytes of it.
  PENSTOCK_DEVICE uint32_t Add(uint32_t state, const Words4& words) const {
    constexpr uint32_t kEntryBytes = 32 * 4, kTableBytes = 16 * kEntryBytes;
    uint32_t next = 0;
    PENSTOCK_UNROLL
    for (int w = 0; w < 4; ++w) {
      const uint32_t word = w == 0 ? words.word[0] ^ state : words.word[w];
      PENSTOCK_UNROLL
      for (int n = 0; n < 8; ++n) {
        // Shifts the nibble to where it is the offset of its entry.
        const uint32_t shifted = n < 2 ? word << (7 - 4 * n) : word >> (4 * n - 7);
        const uint32_t at = (shifted & (15 * kEntryBytes)) | lane * 4;
        next ^= *reinterpret_cast<const uint32_t*>(table + (w * 8 + n) * kTableBytes + at);
      }
    }
    return next;
  }

  // Combines the states of all lanes, and advances the sum over the parts of the chunk behind.
  // Every lane gets the result.
  PENSTOCK_DEVICE uint32_t Close(const CrcTables& tables, uint32_t state, uint32_t behind) const {
    uint32_t factor = tables.lanes[behind * 32 + lane], sum = 0;
    PENSTOCK_NO_UNROLL
    for (int bit = 31; bit >= 0; --bit) {
      if ((state >> bit & 1u) != 0) sum ^= factor;
      factor = (factor >> 1) ^ ((factor & 1u) != 0 ? kCrcPolynomial : 0u);
    }
    PENSTOCK_UNROLL
    for (int mask = 16; mask > 0; mask /= 2) sum ^= ShuffleXor(sum, mask);
    return sum;
  }
};

}  // namespace penstock::cuda
