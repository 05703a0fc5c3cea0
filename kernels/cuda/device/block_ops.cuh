#pragma once

// Reductions and prefix sums of integers over the threads of a warp or a block; exact, so that
// their order does not matter. A `board` is shared memory with one word per warp.

#include "kernels/cuda/device/device.cuh"

namespace penstock::cuda {

PENSTOCK_DEVICE uint32_t WarpTotal(uint32_t v) {
  PENSTOCK_UNROLL
  for (int mask = 16; mask > 0; mask /= 2) v += ShuffleXor(v, mask);
  return v;
}
PENSTOCK_DEVICE uint32_t WarpMost(uint32_t v) {
  PENSTOCK_UNROLL
  for (int mask = 16; mask > 0; mask /= 2) {
    const uint32_t other = ShuffleXor(v, mask);
    v = other > v ? other : v;
  }
  return v;
}
// Inclusive prefix sum: the sum of the values of this lane and all lower lanes.
PENSTOCK_DEVICE uint32_t WarpPrefix(uint32_t v) {
  const int lane = ThreadX() % 32;
  PENSTOCK_UNROLL
  for (int step = 1; step < 32; step *= 2) {
    const uint32_t other = Shuffle(v, lane - step < 0 ? lane : lane - step);
    if (lane >= step) v += other;
  }
  return v;
}

template <int kWarps>
PENSTOCK_DEVICE uint32_t BlockTotal(uint32_t v, uint32_t* board) {
  v = WarpTotal(v);
  if (ThreadX() % 32 == 0) board[ThreadX() / 32] = v;
  SyncBlock();
  uint32_t total = 0;
  PENSTOCK_UNROLL
  for (int w = 0; w < kWarps; ++w) total += board[w];
  SyncBlock();  // all threads have read the board; it may be written again
  return total;
}
template <int kWarps>
PENSTOCK_DEVICE uint32_t BlockMost(uint32_t v, uint32_t* board) {
  v = WarpMost(v);
  if (ThreadX() % 32 == 0) board[ThreadX() / 32] = v;
  SyncBlock();
  uint32_t max = 0;
  PENSTOCK_UNROLL
  for (int w = 0; w < kWarps; ++w) max = board[w] > max ? board[w] : max;
  SyncBlock();
  return max;
}
// Exclusive prefix sum over the block: the sum of the values of all lower threads. `total` is the
// sum over all threads.
template <int kWarps>
PENSTOCK_DEVICE uint32_t BlockBefore(uint32_t v, uint32_t* board, uint32_t& total) {
  const uint32_t upto = WarpPrefix(v);
  const int warp = ThreadX() / 32;
  if (ThreadX() % 32 == 31) board[warp] = upto;
  SyncBlock();
  uint32_t before = 0;
  total = 0;
  PENSTOCK_UNROLL
  for (int w = 0; w < kWarps; ++w) {
    if (w < warp) before += board[w];
    total += board[w];
  }
  SyncBlock();
  return before + upto - v;
}

}  // namespace penstock::cuda
