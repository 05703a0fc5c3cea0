#pragma once

// 64 interleaved coders (kernels/kv_codec.h) in a warp: a lane has coders `lane` and `lane + 32`.

#include "kernels/cuda/device/block_ops.cuh"
#include "kernels/kv_codec.h"

namespace penstock::cuda {

constexpr uint32_t kRansTop = kRansLow << 16;  // states lie below it

// How many lower lanes are in it.
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

  // Symbols of 64 neighbours, before those of the last call; their words end at `end`, which moves.
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

// symbol | frequency << 8 | (slot - start) << 16 of every slot, in shared memory, by a warp from
// the untrusted frequency of symbol `lane`. False, in all lanes, unless each is at least 1 and they
// add up to kRansSlots.
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

// Decodes from untrusted words, through a ring of shared memory that is filled 256 at a time.
struct RansDecoder {
  const uint32_t* slots;
  uint16_t* ring;          // [kRansRingWords]
  const uint16_t* source;  // of the words
  uint32_t words;          // that there are
  uint32_t state[2];
  uint32_t loaded = 0, read = 0;

  // In all lanes: whether every state is one.
  PENSTOCK_DEVICE bool HasStates() const {
    bool wrong = false;
    PENSTOCK_UNROLL
    for (int h = 0; h < 2; ++h) wrong = wrong || state[h] < kRansLow || state[h] >= kRansTop;
    return Ballot(wrong) == 0;
  }

  // The next symbols of this lane's coders; false, in all lanes, when the words end.
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
      ballot[h] = Ballot(low[h]);
    }
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

  // In all lanes: whether everything was used, and the coders are where they started.
  PENSTOCK_DEVICE bool IsDone() const {
    return Ballot(state[0] != kRansLow || state[1] != kRansLow) == 0 && read == words;
  }

 private:
  // What it overwrites was read at least two steps ago.
  PENSTOCK_DEVICE void Refill() {
    PENSTOCK_UNROLL
    for (uint32_t i = 0; i < 8; ++i) {
      const uint32_t at = loaded + i * 32 + ThreadX() % 32;
      ring[at % kRansRingWords] = at < words ? source[at] : uint16_t{0};
    }
    loaded += 256;
    SyncWarp();
  }
};

}  // namespace penstock::cuda
