// The decode engine with a layer for multi-token prediction: answers are those without it. The
// layer is right wherever it gets the right hidden states, so a wrong guess means that one was lost
// or went to another token.

#include <gtest/gtest.h>

#include "tests/decode_worker/decode_engine_fixture.h"

namespace penstock {
namespace {

class MtpEngineTest : public DecodeEngineTest {
 protected:
  MtpEngineTest() {
    draft_tokens_ = 6;
    ngrams_ = false;
    runner_.has_mtp = true;
    engine_clock_ = &still_;
  }

  // Every fourth prompt is computed here.
  static std::vector<TestSession> Some(int count) {
    std::vector<TestSession> sessions = Mixed(count, 80, 5);
    for (size_t i = 0; i < sessions.size(); ++i) sessions[i].local = i % 4 == 3;
    return sessions;
  }
  int64_t checked() const { return engine_->drafted(Drafter::kMtp); }
  int64_t right() const { return engine_->accepted(Drafter::kMtp); }

  ManualClock still_;  // so that the number of guesses does not depend on the machine
};

// A sequence that was handed over has one slot without the hidden state before it.
TEST_F(MtpEngineTest, IsAlwaysRight) {
  StartWithAll();
  Make(4000, 0);
  std::vector<TestSession> sessions = Some(60);
  Serve(sessions);
  EXPECT_GT(checked(), 1000);
  EXPECT_EQ(right(), checked());
  EXPECT_EQ(engine_->drafted(), checked());
  EXPECT_EQ(runner_.most_wrong, 1);
}

// A runner on a GPU draws the guesses, too.
TEST_F(MtpEngineTest, IsAlwaysRightWhereTheRunnerDraws) {
  runner_.draws = true;
  StartWithAll();
  Make(4000, 0);
  std::vector<TestSession> sessions = Some(60);
  Serve(sessions);
  EXPECT_GT(checked(), 1000);
  EXPECT_EQ(right(), checked());
  EXPECT_GE(runner_.mtp_drawn, checked());
  EXPECT_EQ(runner_.most_wrong, 1);
}

TEST_F(MtpEngineTest, OneSequenceTakesFewSteps) {
  StartWithAll();
  Make(4000, 0);
  std::vector<TestSession> sessions = Some(1);
  sessions[0].answers = 400;
  sessions[0].choices = 1;
  Serve(sessions);
  EXPECT_EQ(right(), checked());
  EXPECT_EQ(engine_->steps() + right(), 399);
  EXPECT_LT(engine_->steps(), 399 / 6 + 20);
}

// Its hidden states go on from those of the prompt.
TEST_F(MtpEngineTest, APromptComputedHereLeavesNoHole) {
  StartWithAll();
  Make(4000, 0);
  std::vector<TestSession> sessions = Some(8);
  for (TestSession& session : sessions) session.local = true;
  Serve(sessions);
  EXPECT_GT(checked(), 50);
  EXPECT_EQ(right(), checked());
  EXPECT_EQ(runner_.most_wrong, 0);
}

TEST_F(MtpEngineTest, AWrongLayerChangesNothing) {
  runner_.mtp_errs_at = 3;
  StartWithAll();
  Make(4000, 0);
  std::vector<TestSession> sessions = Some(60);
  Serve(sessions);
  EXPECT_GT(right(), 300);
  EXPECT_LT(right(), checked());
  EXPECT_EQ(runner_.most_wrong, 1);  // what wrong guesses leave is overwritten
}

TEST_F(MtpEngineTest, PreemptedSessionsGoOnExactly) {
  Make(90, 4000);
  ServeUntilPreempted(5, [] { return Some(60); });
  EXPECT_GT(checked(), 300);
  EXPECT_EQ(right(), checked());
  EXPECT_EQ(runner_.most_wrong, 1);
}

// Where no guess pays, the layer's slots are computed all the same.
TEST_F(MtpEngineTest, TheSequencesOwnTokensMayGuessToo) {
  ngrams_ = true;
  runner_.repeats = true;
  runner_.mtp_errs_at = 2;
  StartWithAll();
  Make(4000, 0);
  std::vector<TestSession> sessions = Some(60);
  Serve(sessions);
  EXPECT_GT(right(), 20);
  EXPECT_GT(engine_->accepted(Drafter::kNgram), 20);
  EXPECT_EQ(runner_.most_wrong, 1);
}

TEST_F(MtpEngineTest, BeamsGetNoGuesses) {
  runner_.unsure = true;
  Make(4000, 0);
  std::vector<TestSession> sessions(1);
  sessions[0].key = {.session = 1, .epoch = 0, .nonce = 1};
  sessions[0].prompt.assign(40, 7);
  sessions[0].answers = 30;
  sessions[0].beams = BeamRules{.width = 4, .answers = 1, .tokens_max = 30};
  source_->Add(sessions[0]);
  EXPECT_TRUE(sessions[0].sink->Await().ok());
  EXPECT_EQ(checked(), 0);
  EXPECT_GT(engine_->steps(), 20);
}

// An error of the layer ends no session, and no session that was swapped out meanwhile.
TEST_F(MtpEngineTest, AFailedLayerEndsNoSession) {
  int steps = 0;
  runner_.mtp_fails = [&steps] { return ++steps > 40; };
  Make(90, 4000);
  ServeUntilPreempted(5, [] { return Some(60); });
  EXPECT_EQ(steps, 41);
}

}  // namespace
}  // namespace penstock
