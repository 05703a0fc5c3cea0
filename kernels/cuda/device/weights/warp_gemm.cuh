#pragma once

// Product of few rows with a quantised weight of many panels: as quantised_gemm.cuh, but a warp
// fetches, expands and multiplies a panel by itself. Other warps use the time in which it waits.

#include "kernels/cuda/device/weights/quantised_gemm.cuh"

namespace penstock::cuda {

constexpr int kPanelWarps = 4;  // of a block, with a panel each

template <int kColumns>
struct WarpShape {
  static constexpr int kRows = 8 * kColumns;
  static constexpr int kThreads = 32 * kPanelWarps;
  static constexpr int kStages = 6;
  static constexpr int kInputBytes = kRows * kCodeInputs * 2;

  static constexpr int StageBytes(const ChunkLayout& chunk) {
    return kInputBytes + kPanelWarps * chunk.bytes;
  }
};

template <Expansion kExpansion, InputOrder kOrder, int kColumns>
struct QuantisedWarp {
  using Shape = WarpShape<kColumns>;
  static constexpr int kPlaces = kCodeInputs / 8, kBlocks = kCodeInputs / kBlockInputs;
  // Copies of 16 bytes by which a lane takes part in fetching the largest chunk.
  static constexpr int kCodeCopies = StepCodes<kExpansion>::kChunkMax / 512 + 1;

  const QuantisedParams& p;
  int warp, lane, stage_bytes;
  int begin, end;  // chunks
  bool has_panel;
  const uint8_t* codes;  // this lane's first 16 bytes of the chunk to be fetched
  const Bf16* inputs;    // and this thread's inputs, from `input` on, in its first row
  int input;
  float sums[kColumns][4];

  PENSTOCK_DEVICE explicit QuantisedWarp(const QuantisedParams& params) : p(params) {
    warp = ThreadX() / 32;
    lane = ThreadX() % 32;
    stage_bytes = Shape::StageBytes(p.chunk);
    const int chunks = static_cast<int>(ChunksOf(p.inputs)), slice = p.slice_inputs / kCodeInputs;
    begin = BlockY() * slice;
    end = begin + slice < chunks ? begin + slice : chunks;
    const int64_t panel = static_cast<int64_t>(BlockX()) * kPanelWarps + warp;
    has_panel = panel * kCodePanel < p.outputs;
    codes = p.panels + ((has_panel ? panel : 0) * chunks + begin) * p.chunk.bytes + lane * 16;
    input = begin * kCodeInputs + ThreadX() % kPlaces * 8;
    inputs = p.input + static_cast<int64_t>(ThreadX() / kPlaces) * p.inputs + input;
    PENSTOCK_UNROLL
    for (int n = 0; n < kColumns; ++n) sums[n][0] = sums[n][1] = sums[n][2] = sums[n][3] = 0;
  }

  PENSTOCK_DEVICE uint8_t* Stage(int stage) const { return SharedMemory() + stage * stage_bytes; }
  PENSTOCK_DEVICE uint8_t* Codes(int stage) const {
    return Stage(stage) + Shape::kInputBytes + warp * p.chunk.bytes;
  }

  // Starts the copies of the next chunk.
  PENSTOCK_DEVICE void Fetch(int chunk, int stage) {
    if (chunk < end) {
      uint8_t* to = Codes(stage) + lane * 16;
      PENSTOCK_UNROLL
      for (int at = 0; at < kCodeCopies * 512; at += 512) {
        if (lane * 16 + at < p.chunk.bytes) CopyAsync16(to + at, codes + at, true);
      }
      PENSTOCK_UNROLL
      for (int row = 0; row < Shape::kRows; row += Shape::kThreads / kPlaces) {
        const bool valid = ThreadX() / kPlaces + row < p.rows && input < p.inputs;
        const Bf16* from = inputs + static_cast<int64_t>(row) * p.inputs;
        CopyAsync16(Stage(stage) + InputChunk(ThreadX() / kPlaces + row, ThreadX() % kPlaces),
                    valid ? from : p.input, valid);
      }
      codes += p.chunk.bytes;
      inputs += kCodeInputs;
      input += kCodeInputs;
    }
    CommitCopies();
  }

  PENSTOCK_DEVICE void Multiply(int stage) {
    const uint8_t* chunk = Codes(stage);
    StepCodes<kExpansion> steps[kBlocks];
    uint32_t x[kBlocks][kColumns][4];
    PENSTOCK_UNROLL
    for (int block = 0; block < kBlocks; ++block) {
      steps[block].Read(chunk + p.chunk.codes_at, block, lane);
      PENSTOCK_UNROLL
      for (int n = 0; n < kColumns; ++n) {
        ReadInputs<kOrder>(Stage(stage), n, block, lane, x[block][n]);
      }
    }
    Expander<kExpansion> expander;
    PENSTOCK_UNROLL
    for (int block = 0; block < kBlocks; ++block) {
      if (BeginsGroup(p.chunk, block)) {
        expander.Use(ReadGroup<kExpansion, kOrder>(p.chunk, chunk, block, 0, lane));
      }
      PENSTOCK_UNROLL
      for (int t = 0; t < 2; ++t) {
        if (t == 1 && StepsHaveGroups<kExpansion, kOrder>(p.chunk)) {
          expander.Use(ReadGroup<kExpansion, kOrder>(p.chunk, chunk, block, t, lane));
        }
        uint32_t operands[4];
        expander.Expand(steps[block].words[t], operands);
        PENSTOCK_UNROLL
        for (int n = 0; n < kColumns; ++n) {
          Mma<true>(sums[n], operands, x[block][n][2 * t], x[block][n][2 * t + 1]);
        }
      }
    }
  }

  PENSTOCK_DEVICE void Run() {
    constexpr int kStages = Shape::kStages;
    PENSTOCK_NO_UNROLL
    for (int s = 0; s < kStages - 1; ++s) Fetch(begin + s, s);
    int stage = 0;
    for (int chunk = begin; chunk < end; ++chunk) {
      WaitCopies<kStages - 2>();
      SyncBlock();  // copies of all threads are complete, and the stage before may be overwritten
      Fetch(chunk + kStages - 1, stage == 0 ? kStages - 1 : stage - 1);
      Multiply(stage);
      stage = stage + 1 == kStages ? 0 : stage + 1;
    }
    WaitCopies<0>();
  }

  PENSTOCK_DEVICE void Store() {
    if (!has_panel) return;
    float* output = p.output + BlockY() * p.slice_stride;
    const int first = (BlockX() * kPanelWarps + warp) * kCodePanel + lane / 4;
    PENSTOCK_UNROLL
    for (int i = 0; i < kColumns * 4; ++i) {
      const int column = first + i % 4 / 2 * 8, row = i / 4 * 8 + lane % 4 * 2 + i % 2;
      if (row < p.rows && column < p.outputs) {
        output[row * p.output_stride + column] = sums[i / 4][i % 4];
      }
    }
  }
};

// Grid: four panels x slices.
template <Expansion kExpansion, InputOrder kOrder, int kColumns>
__global__ void __launch_bounds__(WarpShape<kColumns>::kThreads)
    WarpGemmKernel(const __grid_constant__ QuantisedParams p) {
  QuantisedWarp<kExpansion, kOrder, kColumns> warp(p);
  warp.Run();
  warp.Store();
}

}  // namespace penstock::cuda
