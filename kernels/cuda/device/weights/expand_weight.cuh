#pragma once

// Writes a quantised weight in bf16, for products of many rows. A warp expands a chunk of a panel
// in registers, and turns it in shared memory into rows.

#include "kernels/cuda/device/weights/expansion.cuh"
#include "kernels/cuda/quantised_gemm.h"

namespace penstock::cuda {

constexpr int kExpandWarps = 4;  // of a block, with a panel each
constexpr int kExpandWarpBytes = kCodePanel * kCodeInputs * 2;

// The address of 16 bytes of an output's row.
PENSTOCK_DEVICE int ExpandedChunk(int row, int place) {
  return row * (kCodeInputs * 2) + ((place ^ (row & 7)) << 4);
}

template <Expansion kExpansion, InputOrder kOrder>
struct ExpandWarp {
  const ExpandParams& p;
  int lane;
  int64_t panel;
  uint8_t* rows;  // of this warp, in shared memory

  PENSTOCK_DEVICE explicit ExpandWarp(const ExpandParams& params) : p(params) {
    lane = ThreadX() % 32;
    panel = static_cast<int64_t>(BlockY()) * kExpandWarps + ThreadX() / 32;
    rows = SharedMemory() + ThreadX() / 32 * kExpandWarpBytes;
  }

  PENSTOCK_DEVICE void Put(int block, int t, const uint32_t (&operands)[4]) {
    PENSTOCK_UNROLL
    for (int i = 0; i < 4; ++i) {
      const int row = lane / 4 + i % 2 * 8, member = lane % 4, j = i / 2;
      const int input = block * 32 + (kOrder == InputOrder::kNatural ? 16 * t + 8 * j + 2 * member
                                                                     : 8 * member + 4 * t + 2 * j);
      auto* word =
          reinterpret_cast<uint32_t*>(rows + ExpandedChunk(row, input / 8)) + input % 8 / 2;
      *word = operands[i];
    }
  }

  PENSTOCK_DEVICE void Expand() {
    const int64_t index = panel * ChunksOf(p.inputs) + BlockX();
    const uint8_t* chunk = p.panels + BlockZ() * p.panels_stride + index * p.chunk.bytes;
    Expander<kExpansion> expander;
    PENSTOCK_UNROLL
    for (int block = 0; block < kCodeInputs / 32; ++block) {
      if (BeginsGroup(p.chunk, block)) {
        expander.Use(ReadGroup<kExpansion, kOrder>(p.chunk, chunk, block, 0, lane));
      }
      StepCodes<kExpansion> step;
      step.Read(chunk + p.chunk.codes_at, block, lane);
      PENSTOCK_UNROLL
      for (int t = 0; t < 2; ++t) {
        if (t == 1 && StepsHaveGroups<kExpansion, kOrder>(p.chunk)) {
          expander.Use(ReadGroup<kExpansion, kOrder>(p.chunk, chunk, block, t, lane));
        }
        uint32_t operands[4];
        expander.Expand(step.words[t], operands);
        Put(block, t, operands);
      }
    }
  }

  PENSTOCK_DEVICE void Store() {
    constexpr int kPlaces = kCodeInputs / 8;
    PENSTOCK_UNROLL
    for (int c = lane; c < kCodePanel * kPlaces; c += 32) {
      const int row = c / kPlaces, place = c % kPlaces, input = BlockX() * kCodeInputs + place * 8;
      const int64_t output = panel * kCodePanel + row;
      if (output >= p.outputs || input >= p.inputs) continue;
      cuda::Store(p.target + BlockZ() * p.target_stride + output * p.inputs + input,
                  *reinterpret_cast<const Words4*>(rows + ExpandedChunk(row, place)));
    }
  }
};

// Grid: chunks of inputs x four panels of outputs x matrices.
template <Expansion kExpansion, InputOrder kOrder>
__global__ void __launch_bounds__(kExpandWarps * 32)
    ExpandKernel(const __grid_constant__ ExpandParams p) {
  ExpandWarp<kExpansion, kOrder> warp(p);
  if (warp.panel >= PanelsOf(p.outputs)) return;
  warp.Expand();
  SyncWarp();
  warp.Store();
}

}  // namespace penstock::cuda
