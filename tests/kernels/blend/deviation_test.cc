#include "kernels/blend/deviation.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>

namespace penstock {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

TEST(MostDeviatingTest, TakesThoseThatDeviateMostInTheirOrder) {
  const std::vector<float> tokens = {1, 5, 0, 7, 5, 2};
  EXPECT_THAT(MostDeviating(tokens, 2), ElementsAre(1, 3));
  EXPECT_THAT(MostDeviating(tokens, 4), ElementsAre(1, 3, 4, 5));
  EXPECT_THAT(MostDeviating(tokens, 9), ElementsAre(0, 1, 2, 3, 4, 5));
  EXPECT_THAT(MostDeviating(tokens, 0), IsEmpty());
}

TEST(MostDeviatingTest, NanIsMoreThanEveryNumber) {
  EXPECT_THAT(MostDeviating(std::vector<float>{1e30f, NAN, 3}, 1), ElementsAre(1));
}

TEST(DeviationTest, IsThatOfTheValueColumns) {
  const std::vector<float> reused = {3, 0, 0, 4};
  // The first column is a key's.
  const std::vector<float> computed = {100, 3, 1, 100, 2, 4};
  const ValueDeviation deviation =
      DeviationOf({reused.data(), {2, 2}}, {computed.data(), {2, 3}}, 1);
  EXPECT_THAT(deviation.tokens, ElementsAre(1, 4));
  EXPECT_FLOAT_EQ(deviation.relative, std::sqrt(5.0f / 30));
}

TEST(DeviationTest, OfZerosIsZeroAndOfNanIsAboveEveryBound) {
  const std::vector<float> zeros = {0, 0};
  EXPECT_EQ(DeviationOf({zeros.data(), {1, 2}}, {zeros.data(), {1, 2}}, 0).relative, 0);
  const std::vector<float> broken = {NAN, 0};
  EXPECT_FALSE(DeviationOf({zeros.data(), {1, 2}}, {broken.data(), {1, 2}}, 0).relative <= 1e9f);
}

}  // namespace
}  // namespace penstock
