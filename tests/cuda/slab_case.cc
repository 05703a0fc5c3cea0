#include "tests/cuda/slab_case.h"

#include <algorithm>
#include <cstring>
#include <numeric>
#include <random>

#include "kernels/cuda/slabs.h"
#include "tests/cuda/device_array.h"

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

}  // namespace

SlabResult RunGather(const SlabCase& c) { return Run(c, false); }
SlabResult RunScatter(const SlabCase& c) { return Run(c, true); }

}  // namespace penstock::cuda
