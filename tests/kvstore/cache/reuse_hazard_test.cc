#include "kvstore/cache/reuse_hazard.h"

#include <gtest/gtest.h>

namespace penstock {
namespace {

void Learn(ReuseHazard& hazard) {
  for (int i = 0; i < 100; ++i) hazard.CountAccess();
}

TEST(ReuseHazardTest, MoreUsesAreWorthMoreBeforeAnythingIsKnown) {
  const ReuseHazard hazard;
  EXPECT_LT(hazard.Worth(ReuseHazard::ClassOf(1), 10), hazard.Worth(ReuseHazard::ClassOf(2), 10));
}

TEST(ReuseHazardTest, AClassThatComesBackIsWorthMoreThanOneThatDoesNot) {
  ReuseHazard hazard;
  hazard.ObserveUse(0, 1000);
  hazard.ObserveReuse(0, 20, 10);
  hazard.ObserveUse(1, 1000);
  hazard.ObserveReuse(1, 20, 900);
  Learn(hazard);
  EXPECT_GT(hazard.Worth(1, 0), 10 * hazard.Worth(0, 0));
}

// A block of a kind that returns within 20 s and was not used for 100 s will not return.
TEST(ReuseHazardTest, WorthFallsOnceTheUsualAgeIsPassed) {
  ReuseHazard hazard;
  hazard.ObserveUse(0, 1000);
  hazard.ObserveReuse(0, 15, 800);
  hazard.ObserveReuse(0, 900, 5);
  Learn(hazard);
  EXPECT_GT(hazard.Worth(0, 14), hazard.Worth(0, 0) * 0.99);
  EXPECT_GT(hazard.Worth(0, 14), 100 * hazard.Worth(0, 100));
  EXPECT_GE(hazard.Worth(0, 5000), 0);
}

TEST(ReuseHazardTest, OldObservationsFade) {
  ReuseHazard hazard;
  hazard.ObserveUse(0, 1000);
  hazard.ObserveReuse(0, 15, 800);
  Learn(hazard);
  const double before = hazard.Worth(0, 0);
  for (int round = 0; round < 200; ++round) {
    hazard.ObserveUse(0, 1000);
    Learn(hazard);
  }
  EXPECT_LT(hazard.Worth(0, 0), before / 20);
}

TEST(ReuseHazardTest, ClassesAreCappedAtBothEnds) {
  EXPECT_EQ(ReuseHazard::ClassOf(0), 0);
  EXPECT_EQ(ReuseHazard::ClassOf(1), 0);
  EXPECT_EQ(ReuseHazard::ClassOf(1000000), ReuseHazard::kClasses - 1);
}

}  // namespace
}  // namespace penstock
