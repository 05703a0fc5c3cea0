#pragma once

// Copies the slots of a sequence that stay to its first slots.

#include "kernels/cuda/device/device.cuh"
#include "kernels/cuda/eviction/eviction.h"

namespace penstock::cuda {

constexpr int kMoveThreads = 256;
constexpr int kMoveAhead = 4;    // words of each thread that are loaded before any is stored
constexpr int kMoveWords = 4;    // words of a row that one block copies
constexpr int kMoveSlots = 512;  // slots that one block copies, if not in place

// The same bytes of every row of one plane of one head.
struct SlotBytes {
  const MoveSlotsParams& p;
  const uint32_t* slots;
  int32_t offset;  // from the start of the layer to those of slot 0
  int32_t row_bytes;

  PENSTOCK_DEVICE std::byte* At(const uint32_t* table, uint32_t slot) const {
    const uint32_t page = table[slot >> p.kv.page_log2];
    return p.kv.layer + static_cast<int64_t>(page) * p.kv.block_stride + offset +
           static_cast<int32_t>(slot & ((1u << p.kv.page_log2) - 1)) * row_bytes;
  }

  // Copies `words` words of the rows [begin, end) of the result. In place, a row is stored when
  // this and all earlier rows are read, and later rows are read from slots behind it.
  template <class Word>
  PENSTOCK_DEVICE void Move(int begin, int end, int words) const {
    const int rows = kMoveThreads * kMoveAhead / words;  // at once
    for (int first = begin; first < end; first += rows) {
      Word held[kMoveAhead] = {};
      const int here = (end - first < rows ? end - first : rows) * words;
      PENSTOCK_UNROLL
      for (int i = 0; i < kMoveAhead; ++i) {
        const int at = i * kMoveThreads + ThreadX();
        if (at >= here) continue;
        held[i] = reinterpret_cast<const Word*>(At(p.from, slots[first + at / words]))[at % words];
      }
      SyncBlock();  // all these rows are read
      PENSTOCK_UNROLL
      for (int i = 0; i < kMoveAhead; ++i) {
        const int at = i * kMoveThreads + ThreadX();
        if (at >= here) continue;
        reinterpret_cast<Word*>(At(p.to, static_cast<uint32_t>(first + at / words)))[at % words] =
            held[i];
      }
    }
  }
};

// Grid: pieces of a row, and one for the scales, x KV heads and planes x pieces of the slots.
__global__ void __launch_bounds__(kMoveThreads)
    MoveSlotsKernel(const __grid_constant__ MoveSlotsParams p) {
  const int kv_head = BlockY() / 2;
  const KvPlane& plane = BlockY() % 2 == 0 ? p.kv.keys : p.kv.values;
  const int begin = BlockZ() * kMoveSlots;
  const int end = p.in_place || p.kept - begin < kMoveSlots ? p.kept : begin + kMoveSlots;
  SlotBytes bytes{.p = p,
                  .slots = p.slots + static_cast<int64_t>(kv_head) * p.kept,
                  .offset = plane.offset + kv_head * plane.head_stride,
                  .row_bytes = plane.row_bytes};
  const int words = plane.row_bytes / 8, first = (BlockX() - 1) * kMoveWords;
  if (BlockX() > 0) {
    if (first >= words) return;  // the other plane has longer rows
    bytes.offset += first * 8;
    return bytes.Move<uint64_t>(begin, end,
                                words - first < kMoveWords ? words - first : kMoveWords);
  }
  bytes.offset = plane.scale_offset + kv_head * plane.scale_head_stride;
  bytes.row_bytes = ScaleBytes(plane.code);
  if (bytes.row_bytes == 2) bytes.Move<uint16_t>(begin, end, 1);
  if (bytes.row_bytes == 4) bytes.Move<uint32_t>(begin, end, 1);
}

}  // namespace penstock::cuda
