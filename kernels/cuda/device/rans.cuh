#pragma once

// Interleaved rANS (see kernels/kv_codec.h) by a warp: a lane runs coders `lane` and `lane + 32`.

#include "kernels/cuda/device/block_ops.cuh"
#include "kernels/kv_codec.h"

namespace penstock::cuda {

constexpr uint32_t kRansTop = kRansLow << 16;  // upper bound of the states, exclusive

// The number of lower lanes whose bit is set in `ballot`.
PENSTOCK_DEVICE uint32_t RankIn(uint32_t ballot) {
  return CountBits(ballot & ((1u << (ThreadX() % 32)) - 1u));
}

struct alignas(16) RansSymbol {
  uint32_t frequency, start, reciprocal, shift;  // as in RansTable
};

PENSTOCK_DEVICE RansSymbol MakeRansSymbol(uint32_t frequency, uint32_t start) {
  uint32_t shift = 0;
  while ((2u << shift) < frequency) ++shift;
  const uint64_t one = uint64_t{1} << (32 + shift);
  return {frequency, start,
          frequency == 1 ? 0 : static_cast<uint32_t>((one + frequency - 1) / frequency), shift};
}

struct RansEncoder {
  uint32_t state[2] = {kRansLow, kRansLow};

  // Encodes 64 consecutive symbols, which precede those of the last call. The words that it emits
  // end at `end`, which moves down.
  PENSTOCK_DEVICE void Step(const RansSymbol (&symbol)[2], uint16_t*& end) {
    bool full[2];
    uint32_t ballot[2];
    PENSTOCK_UNROLL
    for (int h = 0; h < 2; ++h) {
      full[h] = state[h] >= symbol[h].frequency << 23;
      ballot[h] = Ballot(full[h]);
    }
    end -= CountBits(ballot[0]) + CountBits(ballot[1]);
    PENSTOCK_UNROLL
    for (int h = 0; h < 2; ++h) {
      const uint32_t place = RankIn(ballot[h]) + (h == 1 ? CountBits(ballot[0]) : 0);
      if (full[h]) end[place] = static_cast<uint16_t>(state[h]);
      const uint32_t x = full[h] ? state[h] >> 16 : state[h];
      const RansSymbol& s = symbol[h];
      const uint32_t quotient =
          s.frequency == 1
              ? x
              : static_cast<uint32_t>(static_cast<uint64_t>(x) * s.reciprocal >> 32) >> s.shift;
      state[h] = (quotient << 8) + (x - quotient * s.frequency) + s.start;
    }
  }
};

// Fills slots[kRansSlots], in shared memory, with symbol | frequency << 8 | (slot - start) << 16,
// by a warp. `frequency` is the untrusted frequency of symbol `lane`. Returns false in all lanes
// unless each frequency is at least 1 and their sum is kRansSlots.
PENSTOCK_DEVICE bool FillRansSlots(uint32_t frequency, uint32_t* slots) {
  const int lane = ThreadX() % 32;
  const uint32_t mine = lane < kRansSymbols ? frequency : 0;
  if (WarpTotal(mine) != kRansSlots || Ballot(lane < kRansSymbols && mine == 0) != 0) return false;
  const uint32_t start = WarpPrefix(mine) - mine;
  PENSTOCK_NO_UNROLL
  for (int s = 0; s < kRansSymbols; ++s) {
    const uint32_t f = Shuffle(mine, s), first = Shuffle(start, s);
    for (uint32_t i = lane; i < f; i += 32)
      slots[first + i] = static_cast<uint32_t>(s) | f << 8 | i << 16;
  }
  SyncWarp();
  return true;
}

constexpr uint32_t kRansRingWords = 512;
constexpr int kRansDecodeShared = kRansSlots * 4 + kRansRingWords * 2;

// Decodes untrusted words through a ring in shared memory that is refilled with 256 words at a
// time, which have been loaded before.
struct RansDecoder {
  const uint32_t* slots;
  uint16_t* ring;          // [kRansRingWords]
  const uint16_t* source;  // the words in global memory
  uint32_t words;          // number of words
  uint32_t state[2];
  uint32_t loaded = 0, read = 0;
  uint16_t next[8] = {};  // the words from `loaded` on, of this lane

  // Loads the first words. Must be called before Step.
  PENSTOCK_DEVICE void Start() { LoadNext(); }

  // Returns in all lanes whether every state is in its range.
  PENSTOCK_DEVICE bool HasStates() const {
    bool wrong = false;
    PENSTOCK_UNROLL
    for (int h = 0; h < 2; ++h) wrong = wrong || state[h] < kRansLow || state[h] >= kRansTop;
    return Ballot(wrong) == 0;
  }

  // Decodes the next symbols of this lane's coders. Returns false in all lanes if the words end
  // early.
  PENSTOCK_DEVICE bool Step(uint32_t (&symbol)[2]) {
    if (loaded - read < 64) Refill();
    bool low[2];
    uint32_t ballot[2];
    PENSTOCK_UNROLL
    for (int h = 0; h < 2; ++h) {
      const uint32_t entry = slots[state[h] & 255u];
      symbol[h] = entry & 255u;
      state[h] = (entry >> 8 & 255u) * (state[h] >> 8) + (entry >> 16);
      low[h] = state[h] < kRansLow;
    }
    PENSTOCK_UNROLL
    for (int h = 0; h < 2; ++h) ballot[h] = Ballot(low[h]);
    const uint32_t first = CountBits(ballot[0]), total = first + CountBits(ballot[1]);
    if (total > words - read) return false;
    PENSTOCK_UNROLL
    for (int h = 0; h < 2; ++h) {
      const uint32_t place = read + RankIn(ballot[h]) + (h == 1 ? first : 0);
      if (low[h]) state[h] = state[h] << 16 | ring[place % kRansRingWords];
    }
    read += total;
    return true;
  }

  // Returns in all lanes whether all words were used and every state is kRansLow again.
  PENSTOCK_DEVICE bool IsDone() const {
    return Ballot(state[0] != kRansLow || state[1] != kRansLow) == 0 && read == words;
  }

 private:
  // Refills the ring. The words that it overwrites were read at least two steps ago.
  PENSTOCK_DEVICE void Refill() {
    PENSTOCK_UNROLL
    for (uint32_t i = 0; i < 8; ++i) {
      ring[(loaded + i * 32 + ThreadX() % 32) % kRansRingWords] = next[i];
    }
    loaded += 256;
    LoadNext();
    SyncWarp();
  }
  PENSTOCK_DEVICE void LoadNext() {
    PENSTOCK_UNROLL
    for (uint32_t i = 0; i < 8; ++i) {
      const uint32_t at = loaded + i * 32 + ThreadX() % 32;
      next[i] = at < words ? source[at] : uint16_t{0};
    }
  }
};

}  // namespace penstock::cuda
