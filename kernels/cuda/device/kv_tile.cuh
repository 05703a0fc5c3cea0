#pragma once

// Tiles of keys and values in shared memory, and the conversion of their codes to mma operands.

#include "kernels/cuda/device/device.cuh"
#include "kernels/cuda/kv_planes.h"

namespace penstock::cuda {

constexpr float kLog2E = 1.4426950408889634f;

// The address of a 16-byte chunk of a row. The XOR swizzle puts the chunks of eight rows of one
// column into different banks.
template <int kRowBytes>
PENSTOCK_DEVICE int Swizzled(int row, int chunk) {
  if constexpr (kRowBytes >= 128) {
    return row * kRowBytes + ((chunk ^ (row & 7)) << 4);
  } else {
    constexpr int kRowsPerLine = 128 / kRowBytes, kChunks = kRowBytes / 16;
    return row * kRowBytes + ((chunk ^ ((row / kRowsPerLine) & (kChunks - 1))) << 4);
  }
}

PENSTOCK_DEVICE const std::byte* PageOf(const KvPlanes& kv, const uint32_t* table, int token) {
  return kv.layer + static_cast<int64_t>(table[token >> kv.page_log2]) * kv.block_stride;
}
PENSTOCK_DEVICE int SlotOf(const KvPlanes& kv, int token) {
  return token & ((1 << kv.page_log2) - 1);
}

// The row of a lane's address for LoadMatrix4 over rows 0-7 and 8-15 at two neighbouring chunks;
// the order of matrices is (0-7, first), (8-15, first), (0-7, second), (8-15, second).
PENSTOCK_DEVICE int RowsThenChunksRow(int lane) { return (lane & 7) + ((lane >> 3) & 1) * 8; }
PENSTOCK_DEVICE int RowsThenChunksChunk(int lane) { return lane >> 4; }
// The same for the order of matrices (0-7, first), (0-7, second), (8-15, first), (8-15, second).
PENSTOCK_DEVICE int ChunksThenRowsRow(int lane) { return (lane & 7) + (lane >> 4) * 8; }
PENSTOCK_DEVICE int ChunksThenRowsChunk(int lane) { return (lane >> 3) & 1; }

// The two elements of a row that a lane has in half `half` of step `step` of K^T q. They follow
// from the order in which its 32-bit words of codes unpack; queries are loaded in the same order.
template <KvCode kCode, int kDim>
PENSTOCK_DEVICE void KeyElements(int step, int half, int member, int& first, int& second) {
  if constexpr (kCode == KvCode::kBf16) {
    first = step * 16 + member * 2 + half * 8;
    second = first + 1;
  } else if constexpr (kCode == KvCode::kI4) {
    const int nibble = (step & 1) * 2 + half, word = (step >> 1) * 4 + member;
    first = (nibble & 1) * (kDim / 2) + word * 4 + (nibble >> 1);
    second = first + 2;
  } else {
    first = step * 16 + member * 4 + half * 2;
    second = first + 1;
  }
}

// Converts word `word` of codes to two f16, in the order of KeyElements; `part` numbers step and
// half.
template <KvCode kCode>
PENSTOCK_DEVICE uint32_t UnpackKeys(uint32_t word, int part) {
  if constexpr (kCode == KvCode::kF8) return E4m3ToHalves(part == 0 ? word & 0xffffu : word >> 16);
  if constexpr (kCode == KvCode::kI8) {
    return Permute(word, 0x64646464u, part == 0 ? 0x4140 : 0x4342);  // 1024 + code
  }
  return NibblesToHalves(word >> (4 * part));
}

// For V^T: a transposed cell holds the same 16 bits of two tokens, that is 1, 2 or 4 elements.
// Converts element `part` of them to two f16, one per token.
template <KvCode kCode>
PENSTOCK_DEVICE uint32_t UnpackValues(uint32_t cells, int part) {
  if constexpr (kCode == KvCode::kF8) {
    return E4m3ToHalves(Permute(cells, 0, part == 0 ? 0x0020 : 0x0031));
  }
  if constexpr (kCode == KvCode::kI8) {
    return Permute(cells, 0x64646464u, part == 0 ? 0x4240 : 0x4341);
  }
  return NibblesToHalves(cells >> (4 * part));
}

// The index of the element in row `row` (0: group, 1: group + 8) of tile `tile` of V^T.
template <KvCode kCode, int kDim>
PENSTOCK_DEVICE int ValueElement(int tile, int row, int group) {
  if constexpr (kCode == KvCode::kBf16) return tile * 16 + row * 8 + group;
  if constexpr (kCode == KvCode::kI4) {
    const int part = (tile & 1) * 2 + row, cell = (tile >> 1) * 8 + group;
    return (part & 1) * (kDim / 2) + cell * 2 + (part >> 1);
  }
  return tile * 16 + group * 2 + row;
}

}  // namespace penstock::cuda
