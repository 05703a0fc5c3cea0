#include "tests/cuda/cases/slab_case.h"

#include <algorithm>
#include <cstring>
#include <numeric>
#include <random>

#include "kernels/cuda/slabs.h"
#include "tests/cuda/cases/device_array.h"

namespace penstock::cuda {
namespace {

std::vector<std::byte> RandomBytes(size_t size, uint64_t seed) {
  std::mt19937_64 random(seed);
  std::vector<std::byte> bytes(size);
  for (std::byte& byte : bytes) byte = static_cast<std::byte>(random());
  return bytes;
}

SlabResult Run(const SlabCase& c, bool scatter) {
  const int64_t arena_blocks = c.blocks + 2, bytes = int64_t{c.piece_bytes} * c.blocks;
  std::vector<std::byte> arena = RandomBytes(arena_blocks * c.block_stride, 1);
  std::vector<std::byte> slab = RandomBytes(bytes + 64, 2);
  std::vector<uint32_t> ids(arena_blocks);
  std::iota(ids.begin(), ids.end(), 0u);
  std::shuffle(ids.begin(), ids.end(), std::mt19937_64(3));
  const DeviceArray<std::byte> device_arena(arena), device_slab(slab);
  const DeviceArray<uint32_t> device_ids(ids), partials(SlabChunks(bytes));
  MoveSlab({.arena = device_arena.data(),
            .block_stride = c.block_stride,
            .offset = c.offset,
            .piece_bytes = c.piece_bytes,
            .blocks = c.blocks,
            .block_ids = device_ids.data(),
            .slab = device_slab.data(),
            .partials = c.sum ? partials.data() : nullptr,
            .scatter = scatter},
           c.processors, nullptr);
  ExpectNoDeviceError("MoveSlab");
  for (uint32_t b = 0; b < c.blocks; ++b) {
    std::byte* piece = arena.data() + ids[b] * c.block_stride + c.offset;
    std::byte* flat = slab.data() + size_t{b} * c.piece_bytes;
    if (scatter) {
      std::memcpy(piece, flat, c.piece_bytes);
    } else {
      std::memcpy(flat, piece, c.piece_bytes);
    }
  }
  SlabResult result{.equal = device_arena.Read() == arena && device_slab.Read() == slab,
                    .checksum = c.sum ? SlabChecksum(partials.Read(), bytes) : 0,
                    .slab = slab};
  result.slab.resize(bytes);
  return result;
}

// The place of byte `at` of the rank's layer in that of all ranks, which has all codes first.
size_t PlaceInWhole(const SlabPartCase& c, size_t at) {
  if (at < c.codes_bytes) return size_t{c.rank} * c.codes_bytes + at;
  return size_t{c.ranks} * c.codes_bytes + size_t{c.rank} * c.scales_bytes + at - c.codes_bytes;
}

}  // namespace

bool RunPart(const SlabPartCase& c, bool scatter) {
  const size_t layer = c.codes_bytes + c.scales_bytes, whole = layer * c.ranks;
  const size_t step = layer + c.beside_bytes, whole_step = whole + c.beside_bytes;
  const size_t offset = layer, stride = (c.layers + 2) * step + 64;
  const size_t slab_stride = c.layers * whole_step + c.behind_bytes;
  std::vector<std::byte> arena = RandomBytes((c.blocks + 2) * stride, 1);
  std::vector<std::byte> slab = RandomBytes(size_t{c.blocks} * slab_stride + 64, 2);
  std::vector<uint32_t> ids(c.blocks + 2);
  std::iota(ids.begin(), ids.end(), 0u);
  std::shuffle(ids.begin(), ids.end(), std::mt19937_64(3));
  const DeviceArray<std::byte> device_arena(arena), device_slab(slab);
  const DeviceArray<uint32_t> device_ids(ids);
  MoveSlabPart({.arena = device_arena.data(),
                .block_stride = static_cast<int64_t>(stride),
                .offset = static_cast<int64_t>(offset),
                .blocks = c.blocks,
                .layers = c.layers,
                .block_ids = device_ids.data(),
                .layer_stride = static_cast<int64_t>(step),
                .layer_bytes = static_cast<uint32_t>(layer),
                .codes_bytes = c.codes_bytes,
                .slab = device_slab.data(),
                .slab_block_stride = static_cast<uint32_t>(slab_stride),
                .slab_layer_stride = static_cast<uint32_t>(whole_step),
                .codes_at = static_cast<uint32_t>(PlaceInWhole(c, 0)),
                .scales_at = static_cast<uint32_t>(PlaceInWhole(c, c.codes_bytes)),
                .scatter = scatter},
               c.processors, nullptr);
  ExpectNoDeviceError("MoveSlabPart");
  for (size_t row = 0; row < size_t{c.blocks} * c.layers; ++row) {
    const size_t block = row / c.layers, of_block = row % c.layers;
    std::byte* own = arena.data() + ids[block] * stride + offset + of_block * step;
    for (size_t at = 0; at < layer; ++at) {
      std::byte& flat = slab[block * slab_stride + of_block * whole_step + PlaceInWhole(c, at)];
      scatter ? own[at] = flat : flat = own[at];
    }
  }
  return device_arena.Read() == arena && device_slab.Read() == slab;
}

SlabResult RunGather(const SlabCase& c) { return Run(c, false); }
SlabResult RunScatter(const SlabCase& c) { return Run(c, true); }

}  // namespace penstock::cuda
