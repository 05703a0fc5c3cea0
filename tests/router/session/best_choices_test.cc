// The best of several choices: which they are, and how a session sends them.

#include "router/session/best_choices.h"

#include <gtest/gtest.h>

#include "tests/router/session/session_fixture.h"

namespace penstock {
namespace {

TEST(BestChoicesTest, AreThoseWithTheBestMeanAndEqualOnesByTheirNumber) {
  const std::vector<ChoiceScore> scores = {{.logprob = -4, .tokens = 2},
                                           {.logprob = -6, .tokens = 6},
                                           {.logprob = -3, .tokens = 3},
                                           {.logprob = -100, .tokens = 200}};
  EXPECT_EQ(BestChoices(scores, 2), (std::vector<uint32_t>{3, 1}));
  EXPECT_EQ(BestChoices(scores, 4), (std::vector<uint32_t>{3, 1, 2, 0}));
  EXPECT_EQ(BestChoices(std::vector<ChoiceScore>{{}}, 1), std::vector<uint32_t>{0});
}

class BestOfTest : public SessionTest {
 protected:
  // Every token of the choice has this log-probability.
  void Answer(const Opened& attempt, std::vector<float> logprobs) {
    std::vector<FakeChoice> choices = ChoicesOf(attempt);
    SendFirst(attempt, choices);
    for (size_t i = 0; i < choices.size(); ++i) {
      while (!choices[i].ended()) {
        v1::TokenOut token = choices[i].Next();
        token.set_logprob(logprobs[i]);
        session_->OnDecodeToken(attempt.attempt, token, now_);
      }
    }
  }
};

TEST_F(BestOfTest, TheBestAreSentWholeWhenAllHaveEnded) {
  answers_ = 2;
  Begin(4, 10);
  EXPECT_EQ(world_.opened[0].decode.sampling().choices(), 4u);
  Answer(world_.opened[0], {-3, -1, -4, -2});
  ASSERT_TRUE(world_.finished.has_value());
  EXPECT_TRUE(world_.finished->ok()) << *world_.finished;
  EXPECT_EQ(world_.text.size(), 2u);
  EXPECT_EQ(world_.text[0], Expected(1, 10));
  EXPECT_EQ(world_.text[1], Expected(3, 10));
  ASSERT_EQ(world_.endings.size(), 2u);
  EXPECT_EQ(world_.endings[0].index(), 0u);
  EXPECT_EQ(world_.endings[1].index(), 1u);
  EXPECT_EQ(world_.endings[1].usage().completion_tokens(), 40u);
  EXPECT_LT(world_.endings[1].cumulative_logprob(), world_.endings[0].cumulative_logprob());
}

TEST_F(BestOfTest, AFailureChangesNothing) {
  answers_ = 1;
  Begin(2, 10);
  std::vector<FakeChoice> choices = ChoicesOf(world_.opened[0]);
  SendFirst(world_.opened[0], choices);
  for (int i = 0; i < 4; ++i) SendToken(world_.opened[0], choices[0]);
  Break(world_.opened[0], Side::kDecode);
  EXPECT_TRUE(world_.text.empty());
  for (size_t i = 1; i < world_.opened.size(); ++i) SessionTest::Answer(world_.opened[i]);
  ASSERT_TRUE(world_.finished.has_value());
  EXPECT_TRUE(world_.finished->ok()) << *world_.finished;
  ASSERT_EQ(world_.endings.size(), 1u);
  EXPECT_EQ(world_.endings[0].usage().completion_tokens(), 20u);
}

// The first tokens of a beam search are candidates, and only the decode worker has answers.
TEST_F(BestOfTest, ABeamSearchIsAnsweredByTheDecodeWorkerAlone) {
  beams_ = true;
  Begin(2, 6);
  std::vector<FakeChoice> candidates = ChoicesOf(world_.opened[0]);
  SendFirst(world_.opened[0], candidates);
  EXPECT_TRUE(world_.text.empty());
  Break(world_.opened[0], Side::kDecode);  // a search has no tokens before its end: it starts again
  ASSERT_EQ(world_.opened.size(), 2u);
  EXPECT_EQ(world_.opened[1].decode.tokens_size(), static_cast<int>(kSessionPrompt.size()));
  candidates = ChoicesOf(world_.opened[1]);
  SendFirst(world_.opened[1], candidates);
  std::vector<FakeChoice> answers = ChoicesOf(world_.opened[1]);
  for (FakeChoice& choice : answers) {
    while (!choice.ended()) {
      v1::TokenOut token = choice.Next();
      token.set_more_in_step(choice.ended() ? 0 : 1);  // they come at once
      session_->OnDecodeToken(world_.opened[1].attempt, token, now_);
    }
  }
  ASSERT_TRUE(world_.finished.has_value());
  EXPECT_TRUE(world_.finished->ok()) << *world_.finished;
  EXPECT_EQ(world_.text[0], Expected(0, 6));
  EXPECT_EQ(world_.text[1], Expected(1, 6));
  EXPECT_EQ(world_.endings.back().usage().accepted_draft_tokens(), 0u);
}

}  // namespace
}  // namespace penstock
