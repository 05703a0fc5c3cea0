#include <algorithm>

#include "kernels/cuda/device/slabs.cuh"
#include "kernels/cuda/slabs.h"

namespace penstock::cuda {

namespace {

void LaunchSlab(const SlabKernelParams& all, const LaunchShape& shape, void* stream) {
  if (all.slab.arena == nullptr) return Launch(&SlabKernel<SlabMove::kNone>, shape, all, stream);
  if (all.slab.scatter) return Launch(&SlabKernel<SlabMove::kScatter>, shape, all, stream);
  Launch(&SlabKernel<SlabMove::kGather>, shape, all, stream);
}

}  // namespace

void MoveSlab(const SlabParams& params, int processors, void* stream) {
  static const CrcTables kTables = MakeCrcTables();
  const int64_t bytes = static_cast<int64_t>(params.piece_bytes) * params.blocks;
  const int64_t chunks = SlabChunks(bytes);
  const auto blocks = static_cast<uint32_t>(
      std::min<int64_t>(processors, (chunks * kCrcParts + kSlabWarps - 1) / kSlabWarps));
  if (blocks == 0) return;
  SlabKernelParams all{.slab = params,
                       .tables = kTables,
                       .chunks = static_cast<uint32_t>(chunks),
                       .blocks = blocks,
                       .padding = static_cast<uint32_t>(chunks * kSlabChunkBytes - bytes)};
  const uint32_t warps = blocks * kSlabWarps, rest = all.chunks % warps;
  while (all.parts < kCrcParts && 2 * all.parts * rest <= warps) all.parts *= 2;
  const int tables_bytes = params.partials != nullptr ? kCrcSharedBytes : 0;
  LaunchSlab(all,
             {.x = static_cast<int>(blocks),
              .threads = kSlabWarps * 32,
              .shared_bytes = static_cast<size_t>(tables_bytes + kSlabBoardBytes)},
             stream);
}

void MoveSlabPart(const SlabPartParams& params, int processors, void* stream) {
  const SlabPartKernelParams all{
      .part = params,
      .units = static_cast<uint32_t>(uint64_t{params.blocks} * params.layers * params.layer_bytes /
                                     sizeof(Words4)),
      .grid = static_cast<uint32_t>(processors)};
  const LaunchShape shape{.x = all.units > 0 ? processors : 0, .threads = kSlabPartThreads};
  params.scatter ? Launch(&SlabPartKernel<true>, shape, all, stream)
                 : Launch(&SlabPartKernel<false>, shape, all, stream);
}

uint32_t SlabChecksum(std::span<const uint32_t> partials, int64_t bytes) {
  const uint32_t chunk = CrcPower(kSlabChunkBytes * 8);
  uint32_t state = 0;
  for (const uint32_t partial : partials) state = CrcMultiply(state, chunk) ^ partial;
  // Apply CRC32C's initial value (all ones) and final inversion.
  return ~(state ^ CrcMultiply(0xffffffffu, CrcPower(static_cast<uint64_t>(bytes) * 8)));
}

uint32_t ContinueChecksum(uint32_t checksum, std::span<const std::byte> more) {
  uint32_t state = ~checksum;
  for (const std::byte byte : more) {
    state ^= std::to_integer<uint32_t>(byte);
    for (int bit = 0; bit < 8; ++bit) state = CrcTimesX(state);
  }
  return ~state;
}

}  // namespace penstock::cuda
