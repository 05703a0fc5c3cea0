#pragma once

#include <array>
#include <cstdint>

#include "kernels/cuda/gemm.h"

// This room is the library implementation of the hot CUDA operations: CUTLASS's products and
// FlashInfer's attention kernels, for GPUs of compute capability 9.0 (H100, H200). Its .cu files
// are the only ones that include headers of these libraries.

namespace penstock::cuda::library {

// The tiles that are compiled: outputs x rows of the result that a block computes at once. Every
// tile adds up the inputs of an element in the same order, so the choice of the tile does not
// change the bits.
enum class GemmTile { k64x16, k64x64, k128x64, k128x128, k128x256 };

struct GemmTileShape {
  const char* name = "";
  int outputs = 0;
  int rows = 0;
  int inputs = 0;          // of one step of the pipeline
  bool ping_pong = false;  // two groups of warps have a tile each, instead of half a tile
  int cluster = 1;         // neighbouring blocks along the outputs that share the loaded rows
};

constexpr std::array<GemmTileShape, 5> kGemmTiles = {{
    {.name = "64x16", .outputs = 64, .rows = 16, .inputs = 128, .ping_pong = true},
    {.name = "64x64", .outputs = 64, .rows = 64, .inputs = 128, .ping_pong = true},
    {.name = "128x64", .outputs = 128, .rows = 64, .inputs = 64},
    {.name = "128x128", .outputs = 128, .rows = 128, .inputs = 64, .ping_pong = true},
    {.name = "128x256", .outputs = 128, .rows = 256, .inputs = 64, .cluster = 2},
}};
constexpr const GemmTileShape& ShapeOf(GemmTile tile) {
  return kGemmTiles[static_cast<size_t>(tile)];
}

// One product: output [rows][outputs] = input [rows][inputs] * weight^T. All pointers are to device
// memory and aligned to 16 bytes.
struct GemmCall {
  Weight weight;
  const Bf16* input = nullptr;
  int32_t rows = 0;
  float* output = nullptr;
  int32_t processors = 0;  // of the GPU
  int32_t swizzle = 1;     // width of the bands in which tiles are visited; 1: none
};

// Enqueues the product. `call.weight` must be supported (gemm_plan.h).
void LaunchGemm(GemmTile tile, const GemmCall& call, void* stream);

}  // namespace penstock::cuda::library
