#include "kernels/selection/page_guesses.h"

#include <gtest/gtest.h>

#include <numeric>

namespace penstock {
namespace {

constexpr int32_t kLayer = 3;

std::vector<uint32_t> Blocks(uint32_t first, size_t count) {
  std::vector<uint32_t> blocks(count);
  std::iota(blocks.begin(), blocks.end(), first);
  return blocks;
}

// A step whose guess, if it is made, begins `off` blocks beside the choice. True if it was made.
bool Step(PageGuesses& guesses, int64_t missing, uint32_t off) {
  guesses.BeginStep();
  const bool pays = guesses.Pays(kLayer);
  if (pays) guesses.OnGuessed(kLayer, Blocks(100 + off, 64), missing);
  guesses.OnChosen(kLayer, Blocks(100, 64), pays ? 0 : missing);
  return pays;
}

TEST(PageGuesses, AreMadeWhereManyPagesAreNotInMemory) {
  PageGuesses guesses;
  EXPECT_FALSE(Step(guesses, 4, 0));  // nothing is known
  EXPECT_TRUE(Step(guesses, 4, 0));   // 4 of 64
  EXPECT_TRUE(Step(guesses, 3, 0));   // what the guess has read counts
  EXPECT_FALSE(Step(guesses, 3, 0));  // fewer
  EXPECT_FALSE(guesses.Pays(kLayer + 1));
}

TEST(PageGuesses, AreMadeWhileMostAreRight) {
  PageGuesses guesses;
  Step(guesses, 64, 0);
  for (int i = 0; i < 200; ++i) EXPECT_TRUE(Step(guesses, 64, 16)) << i;  // 3 of 4
}

// Wrong guesses are made now and then, and more of them once they are right.
TEST(PageGuesses, AreTriedAgain) {
  PageGuesses guesses;
  int made = 0;
  for (int i = 0; i < 64 * 10; ++i) made += Step(guesses, 64, 32) ? 1 : 0;
  EXPECT_EQ(made, 11);  // the first one and the trials
  for (int i = 0; i < 64 * 12; ++i) Step(guesses, 64, 0);
  for (int i = 0; i < 64; ++i) EXPECT_TRUE(Step(guesses, 64, 0)) << i;
}

// The last guesses count, not the first.
TEST(PageGuesses, TheLastOnesCount) {
  PageGuesses guesses;
  for (int i = 0; i < 20'000; ++i) Step(guesses, 64, 0);
  int made = 0;
  for (int i = 0; i < 4'000; ++i) made += Step(guesses, 64, 64) ? 1 : 0;
  EXPECT_LT(made, 1'000);
}

}  // namespace
}  // namespace penstock
