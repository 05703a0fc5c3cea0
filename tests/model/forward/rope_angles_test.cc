#include "model/forward/rope_angles.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>

#include "model/forward/angle_table.h"

namespace penstock {
namespace {

TEST(RopeAnglesTest, PlainAndLinear) {
  const auto plain = RopeFrequencies({.theta = 10000}, 8);
  ASSERT_EQ(plain.size(), 4u);
  for (int i = 0; i < 4; ++i) EXPECT_FLOAT_EQ(plain[i], std::pow(10.0, -i)) << i;
  const auto linear =
      RopeFrequencies({.theta = 10000, .scaling = RopeScaling::kLinear, .factor = 4}, 8);
  for (int i = 0; i < 4; ++i) EXPECT_FLOAT_EQ(linear[i], plain[i] / 4) << i;
}

// Llama 3.1: head_dim 128, theta 500000, factor 8, bands 1 and 4 of 8192.
TEST(RopeAnglesTest, Llama3KeepsShortWavesAndStretchesLongOnes) {
  const RopeConfig rope{.theta = 500000,
                        .scaling = RopeScaling::kLlama3,
                        .factor = 8,
                        .low_freq_factor = 1,
                        .high_freq_factor = 4,
                        .original_max_position = 8192};
  const auto got = RopeFrequencies(rope, 128);
  const auto plain = RopeFrequencies({.theta = 500000}, 128);
  EXPECT_EQ(got[0], plain[0]);
  EXPECT_EQ(got[28], plain[28]);  // wavelength 1956, shorter than 8192 / 4
  EXPECT_FLOAT_EQ(got[63], plain[63] / 8);
  // Pair 31 has wavelength 3615: smooth = (8192 / 3615 - 1) / 3.
  const double wave = 2 * M_PI / plain[31];
  const double smooth = (8192 / wave - 1) / 3;
  EXPECT_NEAR(got[31] / plain[31], (1 - smooth) / 8 + smooth, 1e-5);
}

// DeepSeek-V2's yarn at dim 64: the correction range is [10, 23].
TEST(RopeAnglesTest, YarnInterpolatesInsideItsCorrectionRange) {
  const RopeConfig rope{.theta = 10000,
                        .scaling = RopeScaling::kYarn,
                        .factor = 40,
                        .original_max_position = 4096,
                        .beta_fast = 32,
                        .beta_slow = 1};
  const auto got = RopeFrequencies(rope, 64);
  const auto plain = RopeFrequencies({.theta = 10000}, 64);
  EXPECT_EQ(got[10], plain[10]);
  EXPECT_FLOAT_EQ(got[23], plain[23] / 40);
  const double ramp = 5.0 / 13;
  EXPECT_NEAR(got[15] / plain[15], ramp / 40 + 1 - ramp, 1e-5);
}

// gpt-oss: without truncation the range is [8.09, 17.40] of 32 pairs.
TEST(RopeAnglesTest, YarnWithoutTruncationRampsBetweenPairs) {
  RopeConfig rope{.theta = 150000,
                  .scaling = RopeScaling::kYarn,
                  .factor = 32,
                  .original_max_position = 4096,
                  .beta_fast = 32,
                  .beta_slow = 1,
                  .truncate = false};
  const auto got = RopeFrequencies(rope, 64);
  rope.truncate = true;
  const auto truncated = RopeFrequencies(rope, 64);
  const auto plain = RopeFrequencies({.theta = 150000}, 64);
  const auto pair_of = [](double turns) {
    return 64 * std::log(4096 / (turns * 2 * M_PI)) / (2 * std::log(150000.0));
  };
  const double low = pair_of(32), high = pair_of(1);
  EXPECT_NEAR(low, 8.09, 0.01);
  EXPECT_NEAR(high, 17.40, 0.01);
  for (int pair : {9, 12, 17}) {
    const double ramp = (pair - low) / (high - low), whole = (pair - 8) / 10.0;
    EXPECT_NEAR(got[pair] / plain[pair], ramp / 32 + 1 - ramp, 1e-5) << pair;
    EXPECT_NEAR(truncated[pair] / plain[pair], whole / 32 + 1 - whole, 1e-5) << pair;
  }
  EXPECT_EQ(got[8], plain[8]);
  EXPECT_FLOAT_EQ(got[18], plain[18] / 32);
}

TEST(RopeAnglesTest, LayersHaveTheirOwnRotation) {
  ModelConfig config{.layers = 3, .head_dim = 16};
  config.rope = {.theta = 10000, .attention_factor = 2};
  config.local_rope = {.theta = 100};
  EXPECT_EQ(RotationOf(config, 2).frequencies, RopeFrequencies(config.rope, 16));
  EXPECT_EQ(RotationOf(config, 2).attention_factor, 2);
  config.layer_rope = {LayerRope::kMain, LayerRope::kLocal, LayerRope::kNone};
  EXPECT_EQ(RotationOf(config, 1).frequencies, RopeFrequencies(config.local_rope, 16));
  EXPECT_EQ(RotationOf(config, 1).attention_factor, 1);
  EXPECT_TRUE(RotationOf(config, 2).frequencies.empty());
}

TEST(RopeAnglesTest, AnglesAreScaledByTheAttentionFactor) {
  const std::vector<float> frequencies = {1.0f, 0.25f};
  float cosines[2], sines[2];
  RopeAngles(frequencies, 2.0f, 3, cosines, sines);
  EXPECT_NEAR(cosines[0], 2 * std::cos(3.0), 1e-6);
  EXPECT_NEAR(sines[1], 2 * std::sin(0.75), 1e-6);
}

TEST(AngleTableTest, HasTheBitsOfTheAngles) {
  const RopeConfig rope{.theta = 5000, .attention_factor = 1.5f};
  AngleTable table(rope, 8);
  ASSERT_EQ(table.pairs(), 4u);
  std::vector<float> cosines(4), sines(4);
  const AngleTable::Angles first = table.At(63);
  const std::vector<float> before(first.cosines.begin(), first.cosines.end());
  for (const int32_t position : {5000, 0, 63, 64, 127, 5000}) {
    RopeAngles(RopeFrequencies(rope, 8), 1.5f, position, cosines.data(), sines.data());
    const AngleTable::Angles angles = table.At(position);
    EXPECT_TRUE(std::ranges::equal(angles.cosines, cosines)) << position;
    EXPECT_TRUE(std::ranges::equal(angles.sines, sines)) << position;
  }
  EXPECT_TRUE(std::ranges::equal(first.cosines, before)) << "they stay valid";
  EXPECT_EQ(AngleTable().pairs(), 0u);
}

}  // namespace
}  // namespace penstock
