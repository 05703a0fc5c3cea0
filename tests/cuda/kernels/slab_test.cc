#include "kvstore/wire/slab.h"

#include <gtest/gtest.h>

#include "base/crc32c.h"
#include "tests/cuda/cases/slab_case.h"
#include "tests/cuda/emulator/emulator.h"

namespace penstock::cuda {
namespace {

const SlabCase kCases[] = {
    {.piece_bytes = 4096, .blocks = 3},
    {.piece_bytes = 16, .blocks = 1, .block_stride = 4096, .offset = 0},
    {.piece_bytes = 16384, .blocks = 1, .block_stride = 32768, .offset = 16384},
    {.piece_bytes = 2048 + 64, .blocks = 37, .block_stride = 4096, .offset = 64},
    {.piece_bytes = 8192, .blocks = 41, .block_stride = 12288, .offset = 4096, .processors = 1},
    // Two whole rounds of 8 warps, and two chunks of four parts each.
    {.piece_bytes = 16400, .blocks = 17, .block_stride = 16400, .offset = 0, .processors = 1},
    // Rows with several pieces each.
    {.piece_bytes = 48, .blocks = 1001, .block_stride = 96, .offset = 32, .processors = 1},
};

TEST(Slabs, GatherMovesAndSums) {
  for (const auto order : emulator::kOrders) {
    const emulator::ScopedSchedule schedule(emulator::Copies::kLate, order);
    for (const SlabCase& c : kCases) {
      const SlabResult result = RunGather(c);
      EXPECT_TRUE(result.equal) << c.piece_bytes;
      EXPECT_EQ(result.checksum, Crc32c(result.slab)) << c.piece_bytes;
    }
  }
}

TEST(Slabs, ScatterMovesAndSums) {
  for (const SlabCase& c : kCases) {
    const SlabResult result = RunScatter(c);
    EXPECT_TRUE(result.equal) << c.piece_bytes;
    EXPECT_EQ(result.checksum, Crc32c(result.slab)) << c.piece_bytes;
  }
}

TEST(Slabs, PartsOfOneGpuAreMoved) {
  const SlabPartCase cases[] = {
      {},
      {.blocks = 1, .layers = 1, .codes_bytes = 16, .ranks = 4, .rank = 0},
      {.blocks = 5, .layers = 3, .codes_bytes = 1040, .scales_bytes = 64, .ranks = 4, .rank = 2},
      // Rows of bf16 beside layers in another format, in slabs that end with one of these.
      {.blocks = 5,
       .layers = 3,
       .codes_bytes = 4096,
       .scales_bytes = 0,
       .beside_bytes = 832,
       .behind_bytes = 4928},
      // Several rounds of the grid, the last of which is not full.
      {.blocks = 9, .layers = 1, .codes_bytes = 16384, .scales_bytes = 16, .processors = 1},
      {.blocks = 0},
  };
  for (const auto order : emulator::kOrders) {
    const emulator::ScopedSchedule schedule(emulator::Copies::kLate, order);
    for (const SlabPartCase& c : cases) {
      EXPECT_TRUE(RunPart(c, /*scatter=*/false)) << c.codes_bytes;
      EXPECT_TRUE(RunPart(c, /*scatter=*/true)) << c.codes_bytes;
    }
  }
}

TEST(Slabs, MoveWithoutSumming) {
  for (SlabCase c : kCases) {
    c.sum = false;
    EXPECT_TRUE(RunGather(c).equal) << c.piece_bytes;
    EXPECT_TRUE(RunScatter(c).equal) << c.piece_bytes;
  }
}

}  // namespace
}  // namespace penstock::cuda
