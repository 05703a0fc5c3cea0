#include "model/sampler/token_mass.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <random>
#include <vector>

namespace penstock {
namespace {

// Each of the three floats that make up the steps is rounded once, and so is the power.
TEST(TokenMassTest, IsTheExponentialInUnitsOf2ToMinus40) {
  const Softmax softmax = Softmax::At(3.5f, 0.7);
  for (float logit = 3.5f; logit > -20; logit -= 0.0137f) {
    const double exponent = (static_cast<double>(logit) - 3.5) / 0.7;
    const double exact = std::exp(exponent) * std::pow(2.0, kMassBits);
    const double rounding = (2 - 3 * exponent) * std::pow(2.0, -24);
    EXPECT_NEAR(static_cast<double>(Mass(softmax, logit)), exact, 0.5 + exact * rounding) << logit;
  }
  EXPECT_EQ(Mass(softmax, 3.5f), uint64_t{1} << kMassBits);
}

TEST(TokenMassTest, VanishesAtTheLastBucketAndForWhatIsNoNumber) {
  const Softmax softmax = Softmax::At(0, 1);
  for (const float logit :
       {-41.0f / 1.442695f - 0.01f, -1e30f, -std::numeric_limits<float>::infinity(),
        std::numeric_limits<float>::quiet_NaN()}) {
    EXPECT_EQ(Mass(softmax, logit), 0u) << logit;
  }
  EXPECT_EQ(softmax.Steps(std::numeric_limits<float>::quiet_NaN()), kBuckets);
}

TEST(TokenMassTest, TheLeastTemperatureLeavesTheMostLikelyTokensAlone) {
  const Softmax softmax = Softmax::At(2, std::numeric_limits<float>::denorm_min());
  EXPECT_EQ(Mass(softmax, 2.0f), uint64_t{1} << kMassBits);
  EXPECT_EQ(Mass(softmax, std::nextafter(2.0f, 1.0f)), 0u);
  EXPECT_EQ(Mass(softmax, -std::numeric_limits<float>::infinity()), 0u);
}

TEST(TokenMassTest, BlocksAndSingleTokensAgreeToTheBit) {
  std::mt19937 random(7);
  std::normal_distribution<float> normal(0, 6);
  std::vector<float> logits(1000);
  for (float& logit : logits) logit = normal(random);
  const Softmax softmax = Softmax::At(MaxLogit(logits), 0.9);
  uint64_t total = 0;
  for (const float logit : logits) total += Mass(softmax, logit);
  EXPECT_EQ(TotalMass(softmax, logits), total);
  for (const size_t size : {1, 7, 255, 256}) {
    std::vector<float> steps(size);
    std::vector<uint64_t> mass(size);
    MassBlock(softmax, std::span(logits).first(size), steps.data(), mass.data());
    for (size_t i = 0; i < size; i++) EXPECT_EQ(mass[i], Mass(softmax, logits[i]));
  }
}

TEST(TokenMassTest, MaxLogitSeesEveryPositionAndIgnoresNaN) {
  for (size_t size : {1, 15, 16, 17, 33, 100}) {
    for (size_t at = 0; at < size; at++) {
      std::vector<float> logits(size, -2.0f);
      logits[at] = -1.0f;
      if (size > 1) logits[(at + 1) % size] = std::numeric_limits<float>::quiet_NaN();
      EXPECT_EQ(MaxLogit(logits), -1.0f) << size << " " << at;
    }
  }
  EXPECT_EQ(MaxLogit({}), -std::numeric_limits<float>::infinity());
}

TEST(TokenMassTest, PortableLogIsTheLogarithm) {
  for (double x = 1e-12; x < 1e12; x *= 1.0173) {
    EXPECT_NEAR(PortableLog(x), std::log(x), 4e-16 * std::max(1.0, std::abs(std::log(x)))) << x;
  }
  EXPECT_EQ(PortableLog(1.0), 0.0);
}

}  // namespace
}  // namespace penstock
