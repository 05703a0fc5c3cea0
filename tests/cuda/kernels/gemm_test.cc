#include "kernels/cuda/gemm.h"

#include <gtest/gtest.h>

#include "tests/cuda/cases/gemm_case.h"
#include "tests/cuda/emulator/emulator.h"

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
        EXPECT_LT(RunGemm(c).relative, 1e-6) << c.rows << " " << c.inputs << " " << c.outputs;
      }
    }
  }
}

TEST(SkinnyGemm, OtherRowsChangeNoBit) {
  GemmCase c{.rows = 150, .inputs = 1040, .outputs = 72};
  const std::vector<float> all = RunGemm(c).values;
  for (const int rows : {1, 9, 33, 64, 65}) {
    c.rows = rows;
    std::vector<float> some = RunGemm(c).values;
    EXPECT_TRUE(std::equal(some.begin(), some.end(), all.begin())) << rows;
  }
}

void ExpectTheBitsOfTheSkinnyOne(GemmCase c) {
  const GemmResult skinny = RunGemm(c);
  EXPECT_LT(skinny.relative, 1e-6);
  for (const GemmKernel kernel : {GemmKernel::kWide, GemmKernel::kWideAddedUp}) {
    c.kernel = kernel;
    EXPECT_EQ(RunGemm(c).values, skinny.values) << c.rows << " " << c.inputs << " " << c.outputs;
  }
}

TEST(WideGemm, HasTheBitsOfTheSkinnyOne) {
  ExpectTheBitsOfTheSkinnyOne({.rows = 5, .inputs = 200, .outputs = 24});
  ExpectTheBitsOfTheSkinnyOne({.rows = 140, .inputs = 1152, .outputs = 136});  // slices; tiles
  ExpectTheBitsOfTheSkinnyOne({.rows = 70, .inputs = 2056, .outputs = 72});
}

TEST(WideGemm, HasThemInAnySchedule) {
  for (const auto copies : {emulator::Copies::kLate, emulator::Copies::kEarly}) {
    for (const auto order : emulator::kOrders) {
      const emulator::ScopedSchedule schedule(copies, order);
      ExpectTheBitsOfTheSkinnyOne({.rows = 130, .inputs = 1160, .outputs = 24});
    }
  }
}

TEST(Gemm, IsTheSameOnBothSidesOfTheSkinnyKernelsLimit) {
  GemmCase c{.rows = 64, .inputs = 1040, .outputs = 72, .kernel = GemmKernel::kChosen};
  const std::vector<float> few = RunGemm(c).values;
  c.rows = 65;
  const std::vector<float> many = RunGemm(c).values;
  EXPECT_TRUE(std::equal(few.begin(), few.end(), many.begin()));
}

TEST(SkinnyGemm, SlicesAreOfTheWeightAlone) {
  EXPECT_EQ(SkinnySlices({.outputs = 28672, .inputs = 4096}), 1);
  EXPECT_EQ(SkinnySlices({.outputs = 4096, .inputs = 4096}), 4);
  EXPECT_EQ(SkinnySlices({.outputs = 1024, .inputs = 4096}), 8);
  EXPECT_EQ(SkinnySlices({.outputs = 64, .inputs = 256}), 1);
}

}  // namespace
}  // namespace penstock::cuda
