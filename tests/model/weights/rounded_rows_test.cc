#include "model/weights/rounded_rows.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <random>

#include "kernels/f16.h"
#include "model/weights/weight_policy.h"

namespace penstock {
namespace {

std::vector<float> Normals(size_t count) {
  std::mt19937_64 engine(5);
  std::normal_distribution<float> normal(0.0f, 0.02f);
  std::vector<float> values(count);
  for (float& value : values) value = normal(engine);
  return values;
}

double RelativeError(const std::vector<float>& values, const QuantisedFormat& format) {
  RowRounder rounder(format);
  EXPECT_TRUE(rounder.Round(values));
  const QuantisedRow row = rounder.row();
  double error = 0, norm = 0;
  for (size_t i = 0; i < values.size(); ++i) {
    const float scale = row.scales[i / static_cast<size_t>(format.group)];
    error += std::pow(scale * static_cast<float>(row.codes[i] - format.zero()) - values[i], 2);
    norm += std::pow(values[i], 2);
  }
  return std::sqrt(error / norm);
}

// The errors of rounding normally distributed weights (GGML's Q8_0 and Q4_0: 0.5 % and 8.6 %).
TEST(RowRounderTest, HasTheErrorOfItsBitsAndGroups) {
  const std::vector<float> values = Normals(64 * 1024);
  EXPECT_NEAR(RelativeError(values, {.bits = 8, .group = 32}), 0.005, 0.0005);
  EXPECT_NEAR(RelativeError(values, {.bits = 8, .group = 128}), 0.0065, 0.0005);
  EXPECT_NEAR(RelativeError(values, {.bits = 4, .group = 32}), 0.086, 0.003);
  EXPECT_GT(RelativeError(values, {.bits = 4, .group = 128}), 0.09);
}

TEST(RowRounderTest, RoundsToTheNearestCode) {
  RowRounder rounder({.bits = 8, .group = 32});
  // The scale is 1: 127 is the largest.
  ASSERT_TRUE(rounder.Round(std::vector<float>{127.0f, -127.0f, 0.4f, 0.6f, -3.5f, 0.0f}));
  const QuantisedRow row = rounder.row();
  EXPECT_EQ(row.scales[0], 1.0f);
  EXPECT_EQ(std::vector<uint8_t>(row.codes.begin(), row.codes.end()),
            (std::vector<uint8_t>{255, 1, 128, 129, 124, 128}));
}

TEST(RowRounderTest, FourBitsUseAllSixteenCodes) {
  RowRounder rounder({.bits = 4, .group = 32});
  ASSERT_TRUE(rounder.Round(std::vector<float>{8.0f, -7.0f, 1.0f, -8.0f}));
  const QuantisedRow row = rounder.row();
  EXPECT_EQ(row.scales[0], -1.0f);  // the first of the largest magnitude has code 0
  EXPECT_EQ(std::vector<uint8_t>(row.codes.begin(), row.codes.end()),
            (std::vector<uint8_t>{0, 15, 7, 15}));
}

TEST(RowRounderTest, ZerosAndTinyValuesAreZero) {
  for (const int bits : {4, 8}) {
    RowRounder rounder({.bits = bits, .group = 32});
    ASSERT_TRUE(rounder.Round(std::vector<float>(40, 0.0f)));
    EXPECT_EQ(rounder.row().scales.size(), 2u);
    for (const uint8_t code : rounder.row().codes) EXPECT_EQ(code, 1 << (bits - 1));
    ASSERT_TRUE(rounder.Round(std::vector<float>(40, 1e-30f)));
    EXPECT_EQ(rounder.row().scales[0], 0.0f);
  }
}

TEST(RowRounderTest, RefusesWhatNoScaleHolds) {
  RowRounder rounder({.bits = 8, .group = 32});
  EXPECT_FALSE(rounder.Round(std::vector<float>{1, std::numeric_limits<float>::infinity()}));
  EXPECT_FALSE(rounder.Round(std::vector<float>{1, std::numeric_limits<float>::quiet_NaN()}));
  EXPECT_FALSE(rounder.Round(std::vector<float>{1e8f}));
  EXPECT_TRUE(rounder.Round(std::vector<float>{8e6f}));
}

TEST(RowRounderTest, RoundsToE4m3WithTheLargestAtItsEnd) {
  RowRounder rounder({.code = CodeType::kE4m3, .group = 32, .scale = ScaleType::kF32});
  ASSERT_TRUE(rounder.Round(std::vector<float>{-896, 448, 2.1f, 0}));
  EXPECT_EQ(rounder.row().scales[0], 2.0f);
  const std::vector<uint8_t> codes(rounder.row().codes.begin(), rounder.row().codes.end());
  EXPECT_EQ(codes, (std::vector<uint8_t>{0xfe, 0x76, 0x38, 0}));  // -448, 224, 1, 0
  EXPECT_FALSE(rounder.Round(std::vector<float>{1, std::numeric_limits<float>::infinity()}));
}

TEST(RowRounderTest, RoundsToTheNearestOfATable) {
  RowRounder rounder({.code = CodeType::kE2m1, .bits = 4, .group = 32, .scale = ScaleType::kBf16});
  ASSERT_TRUE(rounder.Round(std::vector<float>{-12, 12, 4.9f, 5.1f, -0.4f, 1.6f}));
  EXPECT_EQ(rounder.row().scales[0], 1.0f);
  const std::vector<uint8_t> codes(rounder.row().codes.begin(), rounder.row().codes.end());
  EXPECT_EQ(codes, (std::vector<uint8_t>{15, 7, 4, 5, 0, 2}));  // -12, 12, 4, 6, 0, 2
  for (const ScaleType scale : {ScaleType::kBf16, ScaleType::kF16, ScaleType::kF32}) {
    RowRounder any({.code = CodeType::kIq4, .bits = 4, .group = 32, .scale = scale});
    ASSERT_TRUE(any.Round(Normals(4096)));
    QuantisedMatrix matrix(1, 4096,
                           {.code = CodeType::kIq4, .bits = 4, .group = 32, .scale = scale});
    matrix.SetRow(0, any.row());  // CHECKs that scales are exact
    EXPECT_FALSE(any.Round(std::vector<float>{1, std::numeric_limits<float>::infinity()}));
  }
}

// The values of a row that is rounded with offsets, in a matrix.
std::vector<float> RoundedWithOffsets(const std::vector<float>& values, int bits) {
  const QuantisedFormat format{
      .bits = bits, .group = 32, .scale = ScaleType::kTwoLevel, .offsets = true};
  RowRounder rounder(format);
  EXPECT_TRUE(rounder.Round(values));
  QuantisedMatrix matrix(1, std::ssize(values), format);
  matrix.SetRow(0, rounder.row());
  std::vector<float> rounded(values.size());
  matrix.GetRow(0, rounded.data());
  return rounded;
}

// As RoundsToTheNearestCode, and with the error of rounded scales and offsets.
TEST(RowRounderTest, RoundsScalesAndOffsetsToMultiplesOfFactors) {
  for (const auto& [bits, limit] : {std::pair(4, 0.08), std::pair(8, 0.02)}) {
    std::vector<float> values = Normals(1000);  // the last run and its last group are short
    double error = 0, norm = 0;
    const auto rounded = RoundedWithOffsets(values, bits);
    for (size_t i = 0; i < values.size(); ++i) {
      error += std::pow(rounded[i] - values[i], 2);
      norm += std::pow(values[i], 2);
    }
    EXPECT_LT(std::sqrt(error / norm), limit) << bits;
    EXPECT_GT(std::sqrt(error / norm), limit / 10) << bits;
  }
  // With a factor of 1/8 for scales of 1 and 2 and of offsets -15 and 0 these are exact enough.
  std::vector<float> steps(64);
  for (size_t i = 0; i < 32; ++i) {
    steps[i] = static_cast<float>(i % 16) - 15;
    steps[32 + i] = static_cast<float>(i % 16) * 2;
  }
  const auto rounded = RoundedWithOffsets(steps, 4);
  for (size_t i = 0; i < 64; ++i) EXPECT_NEAR(rounded[i], steps[i], 0.2) << i;
  RowRounder rounder({.bits = 4, .group = 32, .scale = ScaleType::kTwoLevel, .offsets = true});
  EXPECT_FALSE(rounder.Round(std::vector<float>{1, std::numeric_limits<float>::infinity()}));
  EXPECT_FALSE(rounder.Round(std::vector<float>{1, std::numeric_limits<float>::quiet_NaN()}));
  EXPECT_FALSE(rounder.Round(std::vector<float>{-1e8f, 1}));
  EXPECT_TRUE(rounder.Round(std::vector<float>(300, 0.0f)));
  EXPECT_EQ(rounder.row().scale_factors.size(), 2u);
}

// As GGUF's Q6_K: no offsets, and integers for scales.
TEST(RowRounderTest, RoundsScalesToMultiplesOfAFactor) {
  const QuantisedFormat format{.bits = 6, .group = 16, .scale = ScaleType::kTwoLevel};
  const std::vector<float> values = Normals(1000);  // the last run and its last group are short
  RowRounder rounder(format);
  ASSERT_TRUE(rounder.Round(values));
  EXPECT_TRUE(rounder.row().offsets.empty());
  QuantisedMatrix matrix(1, std::ssize(values), format);
  matrix.SetRow(0, rounder.row());
  std::vector<float> rounded(values.size());
  matrix.GetRow(0, rounded.data());
  double error = 0, norm = 0;
  for (size_t i = 0; i < values.size(); ++i) {
    error += std::pow(rounded[i] - values[i], 2);
    norm += std::pow(values[i], 2);
  }
  EXPECT_LT(std::sqrt(error / norm), 0.03);
  EXPECT_GT(std::sqrt(error / norm), 0.005);
  EXPECT_FALSE(rounder.Round(std::vector<float>{1, std::numeric_limits<float>::infinity()}));
  EXPECT_TRUE(rounder.Round(std::vector<float>(300, 0.0f)));
}

TEST(WeightPolicyTest, HasTheFormsThatItsNamesSay) {
  EXPECT_EQ(WeightPolicyOf("checkpoint"), WeightPolicy::kCheckpoint);
  EXPECT_EQ(WeightPolicyOf("int8"), WeightPolicy::kInt8);
  EXPECT_EQ(WeightPolicyOf("int4"), WeightPolicy::kInt4);
  EXPECT_EQ(WeightPolicyOf("int3"), std::nullopt);
  EXPECT_EQ(FormsOf(WeightPolicy::kCheckpoint).layers, std::nullopt);
  EXPECT_EQ(FormsOf(WeightPolicy::kInt8).layers->Name(), "int8 g128");
  EXPECT_EQ(FormsOf(WeightPolicy::kInt4).layers->Name(), "int4 g32");
  EXPECT_EQ(FormsOf(WeightPolicy::kInt4).lm_head->Name(), "int8 g128");
}

}  // namespace
}  // namespace penstock
