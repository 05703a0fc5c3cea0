#pragma once

// Product of few rows (decode): the weight is read once, from memory directly to registers. 16
// outputs are the rows of an mma and input rows its columns. Both operands use the same permutation
// of inputs within a step, so that the 16 bytes that a lane loads are its operands without any
// exchange.

#include "kernels/cuda/device/device.cuh"
#include "kernels/cuda/gemm.h"

namespace penstock::cuda {

constexpr int kSkinnyWarps = 4;     // warps per block; each computes 16 outputs
constexpr int kSkinnyInputs = 128;  // inputs per stage
constexpr int kSkinnySteps = kSkinnyInputs / 32;

template <int kColumns>
struct SkinnyShape {
  static constexpr int kRows = 8 * kColumns;
  static constexpr int kRowBytes = kSkinnyInputs * 2;
  static constexpr int kStageBytes = kRows * kRowBytes;
  static constexpr int kSharedBytes = 2 * kStageBytes;
};

// The address of a 16-byte chunk of an input row; the eight rows that a quarter warp reads lie in
// different banks.
PENSTOCK_DEVICE int SkinnyChunk(int row, int chunk) {
  return row * (kSkinnyInputs * 2) + ((chunk ^ ((row & 1) << 2)) << 4);
}

template <int kColumns>
struct SkinnyWarp {
  using Shape = SkinnyShape<kColumns>;

  const SkinnyParams& p;
  int lane, group, member;
  int first_output, begin, end;  // begin and end are inputs
  const Bf16* weight[2];         // rows of outputs `group` and `group + 8`
  Words4 now[kSkinnySteps][2], next[kSkinnySteps][2];
  float sums[kColumns][4];

  PENSTOCK_DEVICE explicit SkinnyWarp(const SkinnyParams& params) : p(params) {
    lane = ThreadX() % 32;
    group = lane >> 2;
    member = lane & 3;
    first_output = (BlockX() * kSkinnyWarps + ThreadX() / 32) * 16;
    begin = BlockY() * p.slice_inputs;
    end = begin + p.slice_inputs < p.weight.inputs ? begin + p.slice_inputs : p.weight.inputs;
    PENSTOCK_UNROLL
    for (int r = 0; r < 2; ++r) {
      const int output = first_output + group + 8 * r;
      weight[r] = p.weight.data +
                  static_cast<int64_t>(output < p.weight.outputs ? output : 0) * p.weight.inputs;
    }
    PENSTOCK_UNROLL
    for (int n = 0; n < kColumns; ++n) sums[n][0] = sums[n][1] = sums[n][2] = sums[n][3] = 0;
  }

  PENSTOCK_DEVICE void LoadWeights(int k, Words4 (&to)[kSkinnySteps][2]) {
    PENSTOCK_UNROLL
    for (int s = 0; s < kSkinnySteps; ++s) {
      const int at = k + s * 32 + member * 8;
      PENSTOCK_UNROLL
      for (int r = 0; r < 2; ++r) {
        to[s][r] = Words4{};
        if (at < end) to[s][r] = LoadStreaming(weight[r] + at);
      }
    }
  }

  PENSTOCK_DEVICE void FetchInputs(int k, int stage) {
    constexpr int kChunks = kSkinnyInputs / 8;
    for (int c = ThreadX(); k < end && c < Shape::kRows * kChunks; c += kSkinnyWarps * 32) {
      const int row = c / kChunks, chunk = c % kChunks, at = k + chunk * 8;
      const bool valid = row < p.rows && at < end;
      const Bf16* from = p.input + (valid ? row : 0) * p.input_stride;
      CopyAsync16(SharedMemory() + stage * Shape::kStageBytes + SkinnyChunk(row, chunk),
                  from + (valid ? at : 0), valid);
    }
    CommitCopies();
  }

  PENSTOCK_DEVICE void Multiply(int stage) {
    const uint8_t* inputs = SharedMemory() + stage * Shape::kStageBytes;
    PENSTOCK_UNROLL
    for (int s = 0; s < kSkinnySteps; ++s) {
      const uint32_t(&a)[4] = now[s][0].word, (&b)[4] = now[s][1].word;
      const uint32_t low[4] = {a[0], b[0], a[1], b[1]}, high[4] = {a[2], b[2], a[3], b[3]};
      PENSTOCK_UNROLL
      for (int n = 0; n < kColumns; ++n) {
        const auto x =
            *reinterpret_cast<const Words4*>(inputs + SkinnyChunk(n * 8 + group, s * 4 + member));
        Mma<true>(sums[n], low, x.word[0], x.word[1]);
        Mma<true>(sums[n], high, x.word[2], x.word[3]);
      }
    }
  }

  PENSTOCK_DEVICE void Run() {
    LoadWeights(begin, now);
    FetchInputs(begin, 0);
    int stage = 0;
    for (int k = begin; k < end; k += kSkinnyInputs) {
      FetchInputs(k + kSkinnyInputs, stage ^ 1);
      LoadWeights(k + kSkinnyInputs, next);
      WaitCopies<1>();
      SyncBlock();
      Multiply(stage);
      SyncBlock();  // all threads have read the stage; the next FetchInputs overwrites it
      stage ^= 1;
      PENSTOCK_UNROLL
      for (int s = 0; s < kSkinnySteps; ++s) {
        now[s][0] = next[s][0];
        now[s][1] = next[s][1];
      }
    }
    WaitCopies<0>();
  }

  // visit(row, output, sum) for each of the lane's sums.
  template <class Visit>
  PENSTOCK_DEVICE void ForEach(const Visit& visit) const {
    PENSTOCK_UNROLL
    for (int n = 0; n < kColumns; ++n) {
      PENSTOCK_UNROLL
      for (int i = 0; i < 4; ++i) {
        const int column = first_output + group + (i / 2) * 8, row = n * 8 + member * 2 + i % 2;
        if (row < p.rows && column < p.weight.outputs) visit(row, column, sums[n][i]);
      }
    }
  }
  PENSTOCK_DEVICE void Store() const {
    float* output = p.output + BlockY() * p.slice_stride;
    ForEach([&](int row, int column, float sum) {
      output[static_cast<int64_t>(row) * p.weight.outputs + column] = sum;
    });
  }
};

// Grid: blocks of 64 outputs x slices.
template <int kColumns>
__global__ void __launch_bounds__(kSkinnyWarps * 32)
    SkinnyGemmKernel(const __grid_constant__ SkinnyParams p) {
  SkinnyWarp<kColumns> warp(p);
  warp.Run();
  warp.Store();
}

}  // namespace penstock::cuda
