#pragma once

// The steps that all codecs share: storing the raw bytes if coding does not help, and the CRC32C of
// the payload.

#include "kernels/cuda/device/crc.cuh"
#include "kernels/cuda/kv_codec.h"

namespace penstock::cuda {

constexpr int kPayloadWarps = 8;

// Replaces a payload by the raw bytes if needed. Any grid; its threads share the work.
struct SettleKernelParams {
  SettleParams settle;
  uint32_t threads = 0;  // of the whole grid
};
__global__ void __launch_bounds__(kPayloadWarps * 32)
    SettlePayloadKernel(const __grid_constant__ SettleKernelParams p) {
  const SettleParams& s = p.settle;
  const uint32_t coded = s.coded_bytes != 0 ? s.coded_bytes : s.result->coded_bytes;
  const bool stored = s.result->fault != kNoKvFault || coded >= s.raw_bytes;
  const uint32_t thread = BlockX() * (kPayloadWarps * 32) + ThreadX();
  if (thread == 0) {
    s.result->stored = stored ? 1 : 0;
    s.result->payload_bytes = stored ? s.raw_bytes : coded;
  }
  if (!stored) return;
  for (uint32_t i = thread; i < s.raw_bytes / 16; i += p.threads) {
    reinterpret_cast<Words4*>(s.payload)[i] = reinterpret_cast<const Words4*>(s.raw)[i];
  }
}

struct ChecksumKernelParams {
  ChecksumParams checksum;
  CrcTables tables;
  uint32_t warps = 0;  // of the whole grid
};

PENSTOCK_DEVICE uint32_t SizeOf(const ChecksumParams& c) {
  return c.size != nullptr ? *c.size : c.size_max;
}

// Loads 16 bytes at `at`; bytes beyond `size` are zeros.
PENSTOCK_DEVICE Words4 LoadPadded(const std::byte* bytes, uint32_t at, uint32_t size) {
  if (at + 16 <= size) return LoadStreaming(bytes + at);
  Words4 words = {};
  for (uint32_t i = at; i < size; ++i) {
    words.word[(i - at) / 4] |= static_cast<uint32_t>(bytes[i]) << ((i - at) % 4 * 8);
  }
  return words;
}

// Computes the partial checksums. Any grid; its warps share the chunks.
__global__ void __launch_bounds__(kPayloadWarps * 32)
    ChecksumKernel(const __grid_constant__ ChecksumKernelParams p) {
  auto* tables = reinterpret_cast<uint32_t*>(SharedMemory());
  FillCrcTables(p.tables, kPayloadWarps * 32, tables);
  SyncBlock();
  const ChecksumParams& c = p.checksum;
  const CrcLane crc(tables);
  const uint32_t size = SizeOf(c), chunks = ChecksumChunks(size);
  static_assert(kCrcChunkRows * kCrcRowBytes == kChecksumChunkBytes);
  constexpr uint32_t kAhead = 4;
  for (uint32_t chunk = BlockX() * kPayloadWarps + ThreadX() / 32; chunk < chunks;
       chunk += p.warps) {
    const uint32_t start = chunk * kChecksumChunkBytes + crc.lane * 16;
    Words4 next[kAhead];
    const auto load = [&](uint32_t row) {
      PENSTOCK_UNROLL
      for (uint32_t i = 0; i < kAhead; ++i) {
        next[i] = LoadPadded(c.bytes, start + (row + i) * kCrcRowBytes, size);
      }
    };
    load(0);
    uint32_t state = 0;
    for (uint32_t row = 0; row < kCrcChunkRows; row += kAhead) {
      Words4 words[kAhead];
      PENSTOCK_UNROLL
      for (uint32_t i = 0; i < kAhead; ++i) words[i] = next[i];
      if (row + kAhead < kCrcChunkRows) load(row + kAhead);
      PENSTOCK_UNROLL
      for (uint32_t i = 0; i < kAhead; ++i) state = crc.Add(state, words[i]);
    }
    const uint32_t sum = crc.Close(p.tables, state, 0);
    if (crc.lane == 0) c.partials[chunk] = sum;
  }
}

// x^(2^i) modulo the CRC polynomial. kCrcPeriod is the order of x: x^kCrcPeriod is 1.
constexpr uint64_t kCrcPeriod = 0x7fffffff;
struct CrcPowers {
  std::array<uint32_t, 32> power{};
};
constexpr CrcPowers MakeCrcPowers() {
  CrcPowers powers;
  uint32_t square = 0x40000000;
  for (uint32_t& power : powers.power) {
    power = square;
    square = CrcMultiply(square, square);
  }
  return powers;
}

struct FoldKernelParams {
  ChecksumParams checksum;
  CrcPowers powers;
  uint32_t chunk = 0;  // x^(bits per chunk)
};

// x^exponent, computed by all lanes together.
PENSTOCK_DEVICE uint32_t WarpCrcPower(const CrcPowers& powers, uint64_t exponent) {
  const int lane = ThreadX() % 32;
  uint32_t product = ((exponent % kCrcPeriod) >> lane & 1u) != 0 ? powers.power[lane] : 0x80000000u;
  PENSTOCK_NO_UNROLL
  for (int mask = 16; mask > 0; mask /= 2)
    product = CrcMultiply(product, ShuffleXor(product, mask));
  return product;
}

// Folds the partials into the checksum (CRC combination by multiplication with powers of x). Each
// lane folds a run of partials, so that the last lane's run ends with the last chunk; then
// neighbours are combined in a tree. One warp.
__global__ void __launch_bounds__(32)
    FoldChecksumKernel(const __grid_constant__ FoldKernelParams p) {
  const ChecksumParams& c = p.checksum;
  const uint32_t size = SizeOf(c), chunks = ChecksumChunks(size), run = (chunks + 31) / 32;
  const uint32_t lane = ThreadX(), empty = run * 32 - chunks;
  uint32_t state = 0;
  PENSTOCK_NO_UNROLL
  for (uint32_t i = lane * run; i < (lane + 1) * run; ++i) {
    if (i >= empty) state = CrcMultiply(state, p.chunk) ^ c.partials[i - empty];
  }
  uint32_t behind = WarpCrcPower(p.powers, uint64_t{run} * kChecksumChunkBytes * 8);
  PENSTOCK_NO_UNROLL
  for (int mask = 1; mask < 32; mask *= 2) {
    const uint32_t other = ShuffleXor(state, mask);
    const bool left = (lane & mask) == 0;
    state = CrcMultiply(left ? state : other, behind) ^ (left ? other : state);
    behind = CrcMultiply(behind, behind);
  }
  // Divide out the zeros that pad the last chunk, then apply CRC32C's initial value (all ones) and
  // final inversion.
  const uint64_t padding = uint64_t{chunks} * kChecksumChunkBytes - size;
  state = CrcMultiply(state, WarpCrcPower(p.powers, kCrcPeriod - padding * 8));
  state ^= CrcMultiply(0xffffffffu, WarpCrcPower(p.powers, uint64_t{size} * 8));
  if (lane == 0) c.result->checksum = ~state;
}

}  // namespace penstock::cuda
