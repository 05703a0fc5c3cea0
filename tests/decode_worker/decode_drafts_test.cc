// The decode engine with speculation: answers are those without it.

#include <gtest/gtest.h>

#include "tests/decode_worker/decode_engine_fixture.h"

namespace penstock {
namespace {

class DraftTest : public DecodeEngineTest {
 protected:
  DraftTest() {
    draft_tokens_ = 8;
    runner_.repeats = true;
    engine_clock_ = &still_;
  }

  ManualClock still_;  // so that the number of guesses does not depend on the machine

  static std::vector<TestSession> Some(int count) {
    std::vector<TestSession> sessions = Mixed(count, 80, 5);
    for (size_t i = 0; i < sessions.size(); ++i) sessions[i].local = i % 4 == 3;
    return sessions;
  }
};

TEST_F(DraftTest, AnswersStayTheSameInFewerSteps) {
  Make(4000, 0);
  std::vector<TestSession> sessions = Some(1);
  sessions[0].answers = 400;
  sessions[0].choices = 1;
  Serve(sessions);
  EXPECT_GT(engine_->accepted(), 100);
  EXPECT_GT(engine_->drafted(), engine_->accepted());
  EXPECT_EQ(engine_->steps() + engine_->accepted(), 399);
}

TEST_F(DraftTest, SoTheyDoWithSeveralInAStep) {
  Make(4000, 0);
  std::vector<TestSession> sessions = Some(60);
  Serve(sessions);
  EXPECT_GT(engine_->accepted(), 100);
}

// Guesses take blocks ahead of their sequences, which are swapped out and in.
TEST_F(DraftTest, PreemptedSessionsGoOnExactly) {
  Make(90, 4000);
  ServeUntilPreempted(5, [] { return Some(60); });
  EXPECT_GT(engine_->accepted(), 100);
}

// Credits are exact: one block more than the longest answer needs would be one too many.
TEST_F(DraftTest, GuessesStayWithinTheCreditOfTheLongestAnswer) {
  Make(90, 0);
  std::vector<TestSession> sessions = Some(40);
  Serve(sessions);
  EXPECT_EQ(engine_->preemptions(), 0);
  EXPECT_GT(engine_->accepted(), 100);
}

TEST_F(DraftTest, TheRunnerMayDrawTheTokens) {
  runner_.draws = true;
  Make(90, 4000);
  std::vector<TestSession> sessions = Some(60);
  for (size_t i = 0; i < sessions.size(); ++i) {
    if (i % 3 == 0) sessions[i].sampling.top_logprobs = 2;
  }
  Serve(sessions);
  EXPECT_GT(runner_.drawn, runner_.given);
  EXPECT_GT(engine_->accepted(), 100);
}

// The next turn of a conversation finds the answer's blocks, and no guess in them.
TEST_F(DraftTest, OnlyTokensOfTheAnswerEnterTheCache) {
  Make(4000, 0);
  std::vector<TestSession> sessions = Some(20);
  Serve(sessions);
  std::vector<TestSession> next(sessions.size());
  for (size_t i = 0; i < next.size(); ++i) {
    next[i].key = {.session = 100 + i, .epoch = 0, .nonce = 1};
    next[i].prompt = sessions[i].prompt;
    const uint32_t first = sessions[i].local ? FirstHashToken(sessions[i].prompt, true) : First(0);
    const auto answer = HashAnswer(sessions[i].prompt, first, sessions[i].answers, true);
    next[i].prompt.insert(next[i].prompt.end(), answer.begin(), answer.end());
    next[i].answers = 8;
  }
  const int64_t before = source_->restored();
  Serve(next);  // KvSource compares every block that the cache has
  EXPECT_GT(source_->restored() - before, 50);
}

TEST_F(DraftTest, ARefusedRowEndsItsOwnSessionOnly) {
  Make(90, 4000);
  std::vector<TestSession> sessions = Some(40);
  for (const size_t bad : {4, 9, 28}) {
    sessions[bad].first = kHashVocab;
    sessions[bad].local = false;
  }
  for (TestSession& session : sessions) source_->Add(session);
  for (TestSession& session : sessions) {
    if (session.first) {
      EXPECT_TRUE(absl::IsInternal(session.sink->Await())) << session.sink->Await();
    } else {
      ExpectExact(session);
    }
  }
}

}  // namespace
}  // namespace penstock
