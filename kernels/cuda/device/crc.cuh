#pragma once

// CRC32C in a warp. The checksum is linear: lane by lane, row by row of 512 bytes, each 16 bytes go
// through tables of nibbles that also move the state on by a row. Every lane has a copy of the
// tables in a bank of its own.

#include "kernels/cuda/crc_tables.h"
#include "kernels/cuda/device/device.cuh"

namespace penstock::cuda {

constexpr int kCrcSharedBytes = 32 * 16 * 32 * 4;

// By all threads of a block, before a barrier.
PENSTOCK_DEVICE void FillCrcTables(const CrcTables& tables, int threads, uint32_t* shared) {
  for (int i = ThreadX(); i < 32 * 16 * 32; i += threads) shared[i] = tables.nibbles[i / 32];
}

struct CrcLane {
  const uint32_t* table;  // of this lane: entry i is at i * 32
  int lane;

  // The state behind another row, of which this lane has `words`.
  PENSTOCK_DEVICE uint32_t Add(uint32_t state, const Words4& words) const {
    uint32_t next = 0;
    PENSTOCK_UNROLL
    for (int w = 0; w < 4; ++w) {
      const uint32_t word = w == 0 ? words.word[0] ^ state : words.word[w];
      PENSTOCK_UNROLL
      for (int n = 0; n < 8; ++n) {
        next ^= table[((w * 8 + n) * 16 + (word >> (4 * n) & 15u)) * 32];
      }
    }
    return next;
  }

  // Of all lanes together, in each.
  PENSTOCK_DEVICE uint32_t Close(const CrcTables& tables, uint32_t state) const {
    uint32_t factor = tables.lanes[lane], sum = 0;
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
