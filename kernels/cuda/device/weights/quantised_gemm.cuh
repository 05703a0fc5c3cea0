#pragma once

// Product of few rows with a quantised weight: the codes are read once, through a ring of stages in
// shared memory. The sums of an output are one chain of mma, each of which waits for the one
// before, so that expansion must not delay it: four warps fetch and expand a span of inputs for one
// or two panels of 16 outputs, while others multiply with the operands of the span before.
// warp_gemm.cuh is for weights of many panels.

#include "kernels/cuda/device/weights/expansion.cuh"
#include "kernels/cuda/quantised_gemm.h"

namespace penstock::cuda {

constexpr int kBlockInputs = 32;  // that a warp expands: two steps of mma
constexpr int kExpandingWarps = kCodeInputs / kBlockInputs;

// A stage has the inputs and codes of a span of kSpan chunks.
template <int kColumns, int kPanels, int kSpan>
struct QuantisedShape {
  static constexpr int kRows = 8 * kColumns;
  static constexpr int kWarpColumns = kColumns < 2 ? kColumns : 2;  // of a multiplying warp
  static constexpr int kFetchingThreads = 32 * kExpandingWarps;
  static constexpr int kThreads = kFetchingThreads + 32 * (kColumns / kWarpColumns);
  static constexpr int kStages = kColumns <= 2 ? 6 : 4;
  static constexpr int kInputBytes = kRows * kCodeInputs * 2;  // of a chunk
  static constexpr int kStepBytes = 32 * 16;                   // the operands of a step and a panel
  static constexpr int kPanelBytes = 2 * kExpandingWarps * kStepBytes;
  static constexpr int kOperandBytes = kSpan * kPanels * kPanelBytes;

  static constexpr int ChunkBytes(const ChunkLayout& chunk) {
    return kInputBytes + kPanels * chunk.bytes;
  }
  static constexpr int SharedBytes(const ChunkLayout& chunk) {
    return 2 * kOperandBytes + kStages * kSpan * ChunkBytes(chunk);
  }
  // With the largest chunk of an expansion.
  static constexpr int SharedBytesMax(Expansion expansion) {
    return SharedBytes({.bytes = ChunkBytesMax(expansion)});
  }
};

// The address of 16 bytes of an input row. Eight rows at the same place, and two rows at four
// places, lie in different banks.
PENSTOCK_DEVICE int InputChunk(int row, int place) {
  return row * (kCodeInputs * 2) + ((place ^ (row & 7) ^ ((row & 1) << 2)) << 4);
}

// The operands of input rows [8 n, 8 n + 8) for the two steps of a block of 32 inputs.
template <InputOrder kOrder>
PENSTOCK_DEVICE void ReadInputs(const uint8_t* rows, int n, int block, int lane, uint32_t (&x)[4]) {
  if constexpr (kOrder == InputOrder::kNatural) {
    LoadMatrix4(x, rows + InputChunk(n * 8 + lane % 8, block * 4 + lane / 8));
  } else {
    const auto all =
        *reinterpret_cast<const Words4*>(rows + InputChunk(n * 8 + lane / 4, block * 4 + lane % 4));
    PENSTOCK_UNROLL
    for (int i = 0; i < 4; ++i) x[i] = all.word[i];
  }
}

template <Expansion kExpansion, InputOrder kOrder, int kColumns, int kPanels, int kSpan>
struct QuantisedBlock {
  using Shape = QuantisedShape<kColumns, kPanels, kSpan>;
  static constexpr int kPlaces = kCodeInputs / 8;
  static constexpr int kWarpColumns = Shape::kWarpColumns;
  // Copies of 16 bytes by which a thread takes part in fetching the largest chunk of a panel.
  static constexpr int kFetchBytes = Shape::kFetchingThreads * 16;
  static constexpr int kCodeCopies = StepCodes<kExpansion>::kChunkMax / kFetchBytes + 1;

  const QuantisedParams& p;
  int warp, lane;
  int chunk_bytes;  // in a stage
  int chunks, begin, end;
  const uint8_t* codes;  // this thread's first 16 bytes of the chunk to be fetched
  const Bf16* inputs;    // and its inputs, from `input` on, in its first row
  int input;
  float sums[kPanels][kWarpColumns][4];

  PENSTOCK_DEVICE explicit QuantisedBlock(const QuantisedParams& params) : p(params) {
    warp = ThreadX() / 32;
    lane = ThreadX() % 32;
    chunk_bytes = Shape::ChunkBytes(p.chunk);
    chunks = static_cast<int>(ChunksOf(p.inputs));
    const int slice = p.slice_inputs / kCodeInputs;
    begin = BlockY() * slice;
    end = begin + slice < chunks ? begin + slice : chunks;
    const int64_t panel = static_cast<int64_t>(BlockX()) * kPanels;
    codes = p.panels + (panel * chunks + begin) * p.chunk.bytes + ThreadX() * 16;
    input = begin * kCodeInputs + ThreadX() % kPlaces * 8;
    inputs = p.input + static_cast<int64_t>(ThreadX() / kPlaces) * p.inputs + input;
    PENSTOCK_UNROLL
    for (int i = 0; i < kPanels * kWarpColumns * 4; ++i) {
      sums[i / (4 * kWarpColumns)][i / 4 % kWarpColumns][i % 4] = 0;
    }
  }

  PENSTOCK_DEVICE bool HasPanel(int panel) const {
    return (static_cast<int64_t>(BlockX()) * kPanels + panel) * kCodePanel < p.outputs;
  }
  // The operands of a panel in chunk `s` of the even or odd span.
  PENSTOCK_DEVICE uint8_t* Operands(int odd, int s, int panel) const {
    return SharedMemory() + odd * Shape::kOperandBytes + (s * kPanels + panel) * Shape::kPanelBytes;
  }
  // The inputs of a stage's chunk `s`; the codes of the panels follow.
  PENSTOCK_DEVICE uint8_t* Chunk(int stage, int s) const {
    return SharedMemory() + 2 * Shape::kOperandBytes + (stage * kSpan + s) * chunk_bytes;
  }

  // Starts the copies of the next chunk.
  PENSTOCK_DEVICE void FetchChunk(uint8_t* to) {
    PENSTOCK_UNROLL
    for (int panel = 0; panel < kPanels; ++panel) {
      const uint8_t* from = codes + (HasPanel(panel) ? panel : 0) * (chunks * p.chunk.bytes);
      uint8_t* codes_to = to + Shape::kInputBytes + panel * p.chunk.bytes + ThreadX() * 16;
      PENSTOCK_UNROLL
      for (int at = 0; at < kCodeCopies * kFetchBytes; at += kFetchBytes) {
        if (ThreadX() * 16 + at < p.chunk.bytes) CopyAsync16(codes_to + at, from + at, true);
      }
    }
    PENSTOCK_UNROLL
    for (int row = 0; row < Shape::kRows; row += Shape::kFetchingThreads / kPlaces) {
      const bool valid = ThreadX() / kPlaces + row < p.rows && input < p.inputs;
      const Bf16* from = inputs + static_cast<int64_t>(row) * p.inputs;
      CopyAsync16(to + InputChunk(ThreadX() / kPlaces + row, ThreadX() % kPlaces),
                  valid ? from : p.input, valid);
    }
    codes += p.chunk.bytes;
    inputs += kCodeInputs;
    input += kCodeInputs;
  }

  PENSTOCK_DEVICE void Fetch(int chunk, int stage) {
    PENSTOCK_UNROLL
    for (int s = 0; s < kSpan; ++s) {
      if (chunk + s < end) FetchChunk(Chunk(stage, s));
    }
    CommitCopies();
  }

  // Waits for the copies of the span from `chunk` on and for all warps, and starts the copies of a
  // later span, into the stage of the last but one.
  PENSTOCK_DEVICE void Arrive(int chunk, int stage) {
    constexpr int kStages = Shape::kStages;
    WaitCopies<kStages - 3>();
    SyncBlock();
    if (warp >= kExpandingWarps) return;
    Fetch(chunk + (kStages - 2) * kSpan, stage < 2 ? stage + kStages - 2 : stage - 2);
  }

  // Expands this warp's blocks of a span. Codes of a chunk that there is not are never multiplied.
  PENSTOCK_DEVICE void Expand(int odd, int stage) {
    StepCodes<kExpansion> steps[kSpan][kPanels];
    GroupValues groups[kSpan][kPanels];
    PENSTOCK_UNROLL
    for (int i = 0; i < kSpan * kPanels; ++i) {
      const int s = i / kPanels, panel = i % kPanels;
      const uint8_t* from = Chunk(stage, s) + Shape::kInputBytes + panel * p.chunk.bytes;
      steps[s][panel].Read(from + p.chunk.codes_at, warp, lane);
      groups[s][panel] = ReadGroup<kExpansion, kOrder>(p.chunk, from, warp, 0, lane);
    }
    PENSTOCK_UNROLL
    for (int i = 0; i < kSpan * kPanels; ++i) {
      const int s = i / kPanels, panel = i % kPanels;
      Expander<kExpansion> expander;
      expander.Use(groups[s][panel]);
      uint8_t* to = Operands(odd, s, panel) + 2 * warp * Shape::kStepBytes + lane * 16;
      PENSTOCK_UNROLL
      for (int t = 0; t < 2; ++t) {
        if (t == 1 && StepsHaveGroups<kExpansion, kOrder>(p.chunk)) {
          const uint8_t* from = Chunk(stage, s) + Shape::kInputBytes + panel * p.chunk.bytes;
          expander.Use(ReadGroup<kExpansion, kOrder>(p.chunk, from, warp, t, lane));
        }
        Words4 operands;
        expander.Expand(steps[s][panel].words[t], operands.word);
        *reinterpret_cast<Words4*>(to + t * Shape::kStepBytes) = operands;
      }
    }
  }

  // Multiplies a chunk with this warp's rows. All operands are read before the chains begin.
  PENSTOCK_DEVICE void Multiply(int odd, int stage, int s) {
    const int first = (warp - kExpandingWarps) * kWarpColumns;
    const uint8_t* rows = Chunk(stage, s);
    uint32_t x[kExpandingWarps][kWarpColumns][4];
    Words4 weights[kPanels][2 * kExpandingWarps];
    PENSTOCK_UNROLL
    for (int i = 0; i < kExpandingWarps * kWarpColumns; ++i) {
      const int block = i / kWarpColumns, n = i % kWarpColumns;
      ReadInputs<kOrder>(rows, first + n, block, lane, x[block][n]);
    }
    PENSTOCK_UNROLL
    for (int i = 0; i < kPanels * 2 * kExpandingWarps; ++i) {
      const int step = i / kPanels, panel = i % kPanels;
      weights[panel][step] = *reinterpret_cast<const Words4*>(Operands(odd, s, panel) +
                                                              step * Shape::kStepBytes + lane * 16);
    }
    PENSTOCK_UNROLL
    for (int step = 0; step < 2 * kExpandingWarps; ++step) {
      PENSTOCK_UNROLL
      for (int i = 0; i < kPanels * kWarpColumns; ++i) {
        const int panel = i / kWarpColumns, n = i % kWarpColumns;
        const auto& of_block = x[step / 2][n];
        Mma<true>(sums[panel][n], weights[panel][step].word, of_block[step % 2 * 2],
                  of_block[step % 2 * 2 + 1]);
      }
    }
  }

  PENSTOCK_DEVICE void MultiplySpan(int chunk, int odd, int stage) {
    PENSTOCK_UNROLL
    for (int s = 0; s < kSpan; ++s) {
      if (chunk + s < end) Multiply(odd, stage, s);
    }
  }

  PENSTOCK_DEVICE void Run() {
    constexpr int kStages = Shape::kStages;
    const bool expands = warp < kExpandingWarps;
    PENSTOCK_NO_UNROLL
    for (int s = 0; expands && s < kStages - 2; ++s) Fetch(begin + s * kSpan, s);
    Arrive(begin, 0);
    if (expands) Expand(0, 0);
    int stage = 0, odd = 0;
    for (int chunk = begin; chunk < end; chunk += kSpan) {
      const int next = stage + 1 == kStages ? 0 : stage + 1;
      Arrive(chunk + kSpan, next);
      if (!expands) {
        MultiplySpan(chunk, odd, stage);
      } else if (chunk + kSpan < end) {
        Expand(odd ^ 1, next);
      }
      stage = next;
      odd ^= 1;
    }
    WaitCopies<0>();
  }

  PENSTOCK_DEVICE void Store() {
    if (warp < kExpandingWarps) return;
    float* output = p.output + BlockY() * p.slice_stride;
    const int first = (warp - kExpandingWarps) * kWarpColumns;
    PENSTOCK_UNROLL
    for (int i = 0; i < kPanels * kWarpColumns * 4; ++i) {
      const int panel = i / (4 * kWarpColumns), n = i / 4 % kWarpColumns, value = i % 4;
      const int column = (BlockX() * kPanels + panel) * kCodePanel + lane / 4 + value / 2 * 8;
      const int row = (first + n) * 8 + lane % 4 * 2 + value % 2;
      if (row < p.rows && column < p.outputs) {
        output[row * p.output_stride + column] = sums[panel][n][value];
      }
    }
  }
};

// Grid: panels / kPanels x slices.
template <Expansion kExpansion, InputOrder kOrder, int kColumns, int kPanels, int kSpan>
__global__ void __launch_bounds__(QuantisedShape<kColumns, kPanels, kSpan>::kThreads)
    QuantisedGemmKernel(const __grid_constant__ QuantisedParams p) {
  QuantisedBlock<kExpansion, kOrder, kColumns, kPanels, kSpan> block(p);
  block.Run();
  block.Store();
}

}  // namespace penstock::cuda
