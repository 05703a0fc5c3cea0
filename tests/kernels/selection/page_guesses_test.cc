#include "kernels/selection/page_guesses.h"

#include <gtest/gtest.h>

namespace penstock {
namespace {

using std::chrono::milliseconds;

constexpr int32_t kLayer = 3;
constexpr int64_t kChosen = 64;

class PageGuessesTest : public testing::Test {
 protected:
  // A step that takes `with` if it guesses, else `without`. True if it does.
  bool Step(milliseconds without, milliseconds with, int64_t missing = kChosen, int64_t rows = 1) {
    guesses_.BeginStep(rows, now_);
    const bool pays = guesses_.Pays(kLayer);
    if (pays) guesses_.OnGuessed(kLayer, missing);
    guesses_.OnChosen(kLayer, kChosen, pays ? 0 : missing);
    now_ += pays ? with : without;
    guesses_.EndStep(now_);
    return pays;
  }

  void Try(milliseconds without, milliseconds with) {
    for (size_t i = 0; i < PageGuesses::kTrialSteps; ++i) {
      EXPECT_FALSE(Step(without, with)) << i;
      EXPECT_TRUE(Step(without, with)) << i;
    }
  }

  PageGuesses guesses_;
  TimePoint now_;
};

TEST_F(PageGuessesTest, AreMadeWhereTheyAreFaster) {
  Try(milliseconds(20), milliseconds(19));
  for (int64_t i = 0; i < PageGuesses::kKeptSteps; ++i) {
    EXPECT_TRUE(Step(milliseconds(20), milliseconds(30))) << i;
  }
  Try(milliseconds(20), milliseconds(20));  // a trial again
  for (int64_t i = 0; i < PageGuesses::kKeptSteps; ++i) {
    EXPECT_FALSE(Step(milliseconds(20), milliseconds(20))) << i;
  }
}

// A few steps that took long for another reason decide nothing.
TEST_F(PageGuessesTest, TheMedianDecides) {
  for (size_t i = 0; i < PageGuesses::kTrialSteps; ++i) {
    Step(milliseconds(20), milliseconds(0));
    Step(milliseconds(0), milliseconds(i < 7 ? 1000 : 19));
  }
  EXPECT_TRUE(Step(milliseconds(20), milliseconds(19)));
}

TEST_F(PageGuessesTest, AreMadeWhereManyPagesAreNotInMemory) {
  Try(milliseconds(20), milliseconds(10));
  EXPECT_TRUE(Step(milliseconds(20), milliseconds(10), 3));
  EXPECT_FALSE(Step(milliseconds(20), milliseconds(10), 4));  // 3 of 64 were missing before
  EXPECT_TRUE(Step(milliseconds(20), milliseconds(10), 4));   // 4 were
  EXPECT_FALSE(guesses_.Pays(kLayer + 1));
}

TEST_F(PageGuessesTest, StepsWithoutReadsAreNoTrial) {
  for (size_t i = 0; i < 3 * PageGuesses::kTrialSteps; ++i) {
    EXPECT_FALSE(Step(milliseconds(20), milliseconds(10), 0)) << i;
  }
  Try(milliseconds(20), milliseconds(10));
}

TEST_F(PageGuessesTest, ATrialComparesStepsOfAsManyRows) {
  for (size_t i = 0; i < 2 * PageGuesses::kTrialSteps - 1; ++i) {
    Step(milliseconds(20), milliseconds(10));
  }
  EXPECT_FALSE(Step(milliseconds(20), milliseconds(10), kChosen, 2));
  EXPECT_TRUE(Step(milliseconds(20), milliseconds(10), kChosen, 2));
  EXPECT_FALSE(Step(milliseconds(20), milliseconds(10), kChosen, 2));
}

}  // namespace
}  // namespace penstock
