#pragma once

// The pages with the highest scores: a radix select of the lowest score that is kept, digit by
// digit, and then one pass in the order of positions. Counts are integers, so no order of the
// threads changes the choice.

#include "kernels/cuda/device/block_ops.cuh"
#include "kernels/cuda/device/selection/page_scores.cuh"

namespace penstock::cuda {

constexpr int kChooseThreads = 256, kChooseWarps = kChooseThreads / 32;
constexpr int kAlwaysChosenFirst = 1;  // page

struct ChooseShared {
  uint32_t bins[kChooseThreads];
  uint32_t board[kChooseWarps];
  uint32_t digit, above;
};

// Orders floats as unsigned integers.
PENSTOCK_DEVICE uint32_t ScoreKey(float score) {
  const uint32_t bits = FloatToBits(score);
  return (bits & 0x80000000u) != 0 ? ~bits : bits | 0x80000000u;
}

// The pages of one row and KV head that are not always chosen.
struct PageChoice {
  const float* scores;
  int begin, end;  // pages
  ChooseShared& shared;

  // Returns the key of the lowest score that is kept, if `count` pages are. `equal` becomes the
  // number of pages to keep among those that have this key.
  PENSTOCK_DEVICE uint32_t LowestKept(uint32_t count, uint32_t& equal) const {
    uint32_t prefix = 0;
    equal = count;
    for (int shift = 24; shift >= 0; shift -= 8) {
      shared.bins[ThreadX()] = 0;
      SyncBlock();  // all bins are zero
      for (int page = begin + ThreadX(); page < end; page += kChooseThreads) {
        const uint32_t key = ScoreKey(scores[page]);
        if (shift < 24 && key >> (shift + 8) != prefix) continue;
        AtomicAdd(&shared.bins[key >> shift & 255u], 1u);
      }
      SyncBlock();  // all pages are counted
      // Thread t has the digit 255 - t, so that those before it have the greater digits.
      const uint32_t here = shared.bins[kChooseThreads - 1 - ThreadX()];
      uint32_t total;
      const uint32_t before = BlockBefore<kChooseWarps>(here, shared.board, total);
      if (before < equal && before + here >= equal) {
        shared.digit = static_cast<uint32_t>(kChooseThreads - 1 - ThreadX());
        shared.above = before;
      }
      SyncBlock();  // the digit is known
      prefix = prefix << 8 | shared.digit;
      equal -= shared.above;
    }
    return prefix;
  }

  // Writes the pages with higher keys, and the first `equal` of those that have `lowest`.
  PENSTOCK_DEVICE void Write(uint32_t lowest, uint32_t equal, const uint32_t* table,
                             uint32_t* to) const {
    uint32_t higher_so_far = 0, equal_so_far = 0;
    for (int first = begin; first < end; first += kChooseThreads) {
      const int page = first + ThreadX();
      const uint32_t key = page < end ? ScoreKey(scores[page]) : 0u;
      const bool higher = page < end && key > lowest, same = page < end && key == lowest;
      uint32_t total;
      const uint32_t before = BlockBefore<kChooseWarps>((higher ? 1u : 0u) | (same ? 1u << 16 : 0u),
                                                        shared.board, total);
      const uint32_t higher_before = higher_so_far + (before & 0xffffu);
      const uint32_t equal_before = equal_so_far + (before >> 16);
      const uint32_t taken = equal_before < equal ? equal_before : equal;
      if (higher || (same && equal_before < equal)) to[higher_before + taken] = table[page];
      higher_so_far += total & 0xffffu;
      equal_so_far += total >> 16;
    }
  }
};

// Grid: rows x KV heads.
__global__ void __launch_bounds__(kChooseThreads)
    ChoosePagesKernel(const __grid_constant__ ChoosePagesParams p) {
  auto& shared = *reinterpret_cast<ChooseShared*>(SharedMemory());
  const int row = BlockX(), kv_head = BlockY();
  const SelectRow select = p.rows[row];
  if (select.pages == 0) return;  // padding
  const uint32_t* table = p.tables + select.table * p.table_stride;
  uint32_t* chosen = p.chosen + (int64_t{row} * p.kv_heads + kv_head) * p.chosen_stride;
  const int behind = select.pages - kAlwaysChosenLast;
  const PageChoice choice{ScoresOf(p, row, kv_head), kAlwaysChosenFirst, behind, shared};
  const int free = select.keep - kAlwaysChosenFirst - kAlwaysChosenLast;
  uint32_t equal;
  const uint32_t lowest = choice.LowestKept(static_cast<uint32_t>(free), equal);
  choice.Write(lowest, equal, table, chosen + kAlwaysChosenFirst);
  if (ThreadX() == 0) chosen[0] = table[0];
  if (ThreadX() < kAlwaysChosenLast) {
    chosen[kAlwaysChosenFirst + free + ThreadX()] = table[behind + ThreadX()];
  }
}

}  // namespace penstock::cuda
