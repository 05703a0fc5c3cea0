#pragma once

// Bounds of the keys of pages.
//
// This room, kernels/cuda/device/selection, has the kernels that choose the pages which a query
// attends to. It may use kernels/cuda with its selection room, and kernels/cuda/device with its
// eviction room, whose tiles of keys it reads.

#include "kernels/cuda/device/eviction/key_tiles.cuh"
#include "kernels/cuda/selection/selection.h"

namespace penstock::cuda {

// A thread has one dimension. Grid: blocks x KV heads.
template <KvCode kCode, int kDim>
__global__ void __launch_bounds__(KeyTiles<kCode, kDim>::kThreads)
    PageBoundsKernel(const __grid_constant__ PageBoundsParams p) {
  using Tiles = KeyTiles<kCode, kDim>;
  static_assert(kDim <= Tiles::kThreads);
  const uint32_t block = p.blocks[BlockX()];
  if (block == kNoBlock) return;
  const int kv_head = BlockY(), element = ThreadX(), tokens = 1 << p.kv.page_log2;
  const KvSource from{p.kv, p.blocks + BlockX(), kv_head, tokens};
  float greatest = -INFINITY, least = INFINITY;
  for (int first = 0; first < tokens; first += Tiles::kTokens) {
    const uint8_t* keys = Tiles::Load(from, first / Tiles::kTokens);
    if (element >= kDim) continue;
    for (int row = 0; row < Tiles::kTokens && first + row < tokens; ++row) {
      const float key = Tiles::At(keys, row, element);
      greatest = fmaxf(greatest, key);
      least = fminf(least, key);
    }
  }
  if (element >= kDim) return;
  Bf16* bounds =
      p.bounds.layer + int64_t{block} * p.bounds.block_stride + kv_head * 2 * kDim + element;
  bounds[0].bits = RoundBf16(greatest);
  bounds[kDim].bits = RoundBf16(least);
}

}  // namespace penstock::cuda
