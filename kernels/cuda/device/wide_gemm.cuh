#pragma once

// Product of many rows (prefill): tiles of 128 outputs x 128 rows, with both operands staged in
// shared memory. Every element is the same chain of mma as in skinny_gemm.cuh, with the same inputs
// in the same places of the same steps, and slices are added up in the order in which a reader adds
// them. The bits of a row therefore do not depend on which of the two kernels computed it.

#include "kernels/cuda/device/device.cuh"
#include "kernels/cuda/device/skinny_gemm.cuh"
#include "kernels/cuda/gemm.h"

namespace penstock::cuda {

constexpr int kWideTile = 128;   // outputs, and rows, per block
constexpr int kWideInputs = 64;  // inputs per stage
constexpr int kWideStages = 3;
constexpr int kWideThreads = 256;
constexpr int kWideWarpOutputs = 64, kWideWarpRows = 32;
constexpr int kWideRowBytes = kWideInputs * 2;
constexpr int kWideStageBytes = 2 * kWideTile * kWideRowBytes;
constexpr int kWideSharedBytes = kWideStages * kWideStageBytes;

// The address of a 16-byte chunk of a row; eight lanes read four chunks of two rows each from
// different banks.
PENSTOCK_DEVICE int WideChunk(int row, int chunk) {
  return row * kWideRowBytes + ((chunk ^ ((row & 1) << 2)) << 4);
}

struct WideWarp {
  static constexpr int kOutputTiles = kWideWarpOutputs / 16, kRowTiles = kWideWarpRows / 8;

  const WideParams& p;
  int group, member;            // of the lane
  int first_row, first_output;  // first of the block
  int warp_output, warp_row;    // offsets in the block's tile
  int begin, end;               // range of inputs
  int slice;
  float sums[kOutputTiles][kRowTiles][4], totals[kOutputTiles][kRowTiles][4];

  PENSTOCK_DEVICE WideWarp(const WideParams& params, int of_slice) : p(params), slice(of_slice) {
    const int warp = ThreadX() / 32, lane = ThreadX() % 32;
    group = lane >> 2;
    member = lane & 3;
    first_row = BlockX() * kWideTile;
    first_output = BlockY() * kWideTile;
    warp_output = warp / (kWideTile / kWideWarpRows) * kWideWarpOutputs;
    warp_row = warp % (kWideTile / kWideWarpRows) * kWideWarpRows;
    begin = slice * p.block_inputs;
    end = begin + p.block_inputs < p.weight.inputs ? begin + p.block_inputs : p.weight.inputs;
    PENSTOCK_UNROLL
    for (int m = 0; m < kOutputTiles; ++m) {
      PENSTOCK_UNROLL
      for (int n = 0; n < kRowTiles; ++n) {
        PENSTOCK_UNROLL
        for (int i = 0; i < 4; ++i) sums[m][n][i] = totals[m][n][i] = 0;
      }
    }
  }

  // Rows [0, kWideTile) of a stage are the weight's rows; the input's rows follow.
  PENSTOCK_DEVICE void Fetch(int k, int stage) {
    constexpr int kChunks = kWideInputs / 8;
    uint8_t* to = SharedMemory() + stage * kWideStageBytes;
    PENSTOCK_UNROLL
    for (int i = 0; i < 2 * kWideTile * kChunks / kWideThreads; ++i) {
      const int c = i * kWideThreads + ThreadX(), row = c / kChunks, chunk = c % kChunks;
      const bool of_weight = row < kWideTile;
      const int index = of_weight ? first_output + row : first_row + row - kWideTile;
      const int at = k + chunk * 8;
      const bool valid = at < end && index < (of_weight ? p.weight.outputs : p.rows);
      const Bf16* from = of_weight ? p.weight.data : p.input;
      if (valid) from += index * (of_weight ? p.weight.inputs : p.input_stride) + at;
      CopyAsync16(to + WideChunk(row, chunk), from, valid);
    }
    CommitCopies();
  }

  PENSTOCK_DEVICE void Multiply(int stage) {
    const uint8_t* weights = SharedMemory() + stage * kWideStageBytes;
    const uint8_t* inputs = weights + kWideTile * kWideRowBytes;
    PENSTOCK_UNROLL
    for (int s = 0; s < kWideInputs / 32; ++s) {
      Words4 x[kRowTiles];
      PENSTOCK_UNROLL
      for (int n = 0; n < kRowTiles; ++n) {
        x[n] = *reinterpret_cast<const Words4*>(
            inputs + WideChunk(warp_row + n * 8 + group, s * 4 + member));
      }
      PENSTOCK_UNROLL
      for (int m = 0; m < kOutputTiles; ++m) {
        const int row = warp_output + m * 16 + group;
        const auto a = *reinterpret_cast<const Words4*>(weights + WideChunk(row, s * 4 + member));
        const auto b =
            *reinterpret_cast<const Words4*>(weights + WideChunk(row + 8, s * 4 + member));
        const uint32_t low[4] = {a.word[0], b.word[0], a.word[1], b.word[1]};
        const uint32_t high[4] = {a.word[2], b.word[2], a.word[3], b.word[3]};
        PENSTOCK_UNROLL
        for (int n = 0; n < kRowTiles; ++n) {
          Mma<true>(sums[m][n], low, x[n].word[0], x[n].word[1]);
          Mma<true>(sums[m][n], high, x[n].word[2], x[n].word[3]);
        }
      }
    }
  }

  // A slice is complete: add its sum to the total.
  PENSTOCK_DEVICE void AddUp() {
    PENSTOCK_UNROLL
    for (int m = 0; m < kOutputTiles; ++m) {
      PENSTOCK_UNROLL
      for (int n = 0; n < kRowTiles; ++n) {
        PENSTOCK_UNROLL
        for (int i = 0; i < 4; ++i) {
          totals[m][n][i] = Add(totals[m][n][i], sums[m][n][i]);
          sums[m][n][i] = 0;
        }
      }
    }
  }

  PENSTOCK_DEVICE void Run() {
    PENSTOCK_UNROLL
    for (int s = 0; s < kWideStages - 1; ++s) Fetch(begin + s * kWideInputs, s);
    int stage = 0, of_slice = 0;
    // Run to the end of a stage of the skinny kernel, which also multiplies the zeros after `end`.
    const int stages = (end - begin + kSkinnyInputs - 1) / kSkinnyInputs;
    const int last = begin + stages * kSkinnyInputs;
    for (int k = begin; k < last; k += kWideInputs) {
      WaitCopies<kWideStages - 2>();
      SyncBlock();  // copies of all threads are complete, and the stage before may be overwritten
      const int ahead = stage == 0 ? kWideStages - 1 : stage - 1;
      Fetch(k + (kWideStages - 1) * kWideInputs, ahead);
      if (of_slice == p.slice_inputs) {
        AddUp();
        of_slice = 0;
      }
      Multiply(stage);
      of_slice += kWideInputs;
      stage = stage + 1 == kWideStages ? 0 : stage + 1;
    }
    AddUp();
    WaitCopies<0>();
  }

  // visit(row, output, total) for each of the lane's totals.
  template <class Visit>
  PENSTOCK_DEVICE void ForEach(const Visit& visit) const {
    PENSTOCK_UNROLL
    for (int m = 0; m < kOutputTiles; ++m) {
      PENSTOCK_UNROLL
      for (int n = 0; n < kRowTiles; ++n) {
        PENSTOCK_UNROLL
        for (int i = 0; i < 4; ++i) {
          const int column = first_output + warp_output + m * 16 + group + (i / 2) * 8;
          const int row = first_row + warp_row + n * 8 + member * 2 + i % 2;
          if (row < p.rows && column < p.weight.outputs) visit(row, column, totals[m][n][i]);
        }
      }
    }
  }
  PENSTOCK_DEVICE void Store() const {
    float* output = p.output + slice * p.slice_stride;
    ForEach([&](int row, int column, float total) {
      output[static_cast<int64_t>(row) * p.weight.outputs + column] = total;
    });
  }
};

}  // namespace penstock::cuda
