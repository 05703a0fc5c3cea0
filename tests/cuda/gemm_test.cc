#include "kernels/cuda/gemm.h"

#include <gtest/gtest.h>

#include "kernels/cuda/emulator.h"
#include "tests/cuda/gemm_case.h"

namespace penstock::cuda {
namespace {

TEST(SkinnyGemm, IsWhatTheOracleSays) {
  for (const auto copies : {emulator::Copies::kLate, emulator::Copies::kEarly}) {
    for (const auto order : emulator::kOrders) {
      const emulator::ScopedSchedule schedule(copies, order);
      for (const GemmCase& c :
           {GemmCase{.rows = 1, .inputs = 256, .outputs = 64},
            GemmCase{.rows = 7, .inputs = 1152, .outputs = 80},  // slices; a partial block
            GemmCase{.rows = 11, .inputs = 200, .outputs = 24},  // a partial stage
            GemmCase{.rows = 30, .inputs = 520, .outputs = 64},
            GemmCase{.rows = 64, .inputs = 128, .outputs = 16}}) {
        EXPECT_LT(RunSkinnyGemm(c).relative, 1e-6) << c.rows << " " << c.inputs << " " << c.outputs;
      }
    }
  }
}

TEST(SkinnyGemm, OtherRowsChangeNoBit) {
  GemmCase c{.rows = 150, .inputs = 1040, .outputs = 72};
  const std::vector<float> all = RunSkinnyGemm(c).values;
  for (const int rows : {1, 9, 33, 64, 65}) {
    c.rows = rows;
    std::vector<float> some = RunSkinnyGemm(c).values;
    EXPECT_TRUE(std::equal(some.begin(), some.end(), all.begin())) << rows;
  }
}

TEST(SkinnyGemm, SlicesAreOfTheWeightAlone) {
  EXPECT_EQ(SkinnySlices({.outputs = 28672, .inputs = 4096}), 1);
  EXPECT_EQ(SkinnySlices({.outputs = 4096, .inputs = 4096}), 4);
  EXPECT_EQ(SkinnySlices({.outputs = 1024, .inputs = 4096}), 8);
  EXPECT_EQ(SkinnySlices({.outputs = 64, .inputs = 256}), 1);
}

}  // namespace
}  // namespace penstock::cuda
