// The decode engine with a draft model: answers are those without it, whatever it guesses. The
// model's KV says of which tokens it is, so an equal draft model is always right, or its KV is
// damaged.

#include <gtest/gtest.h>

#include "tests/decode_worker/decode_engine_fixture.h"

namespace penstock {
namespace {

class DraftModelEngineTest : public DecodeEngineTest {
 protected:
  DraftModelEngineTest() {
    draft_tokens_ = 6;
    draft_blocks_ = 4000;
    ngrams_ = false;
    engine_clock_ = &still_;
  }

  static std::vector<TestSession> Some(int count) {
    std::vector<TestSession> sessions = Mixed(count, 80, 5);
    for (size_t i = 0; i < sessions.size(); ++i) sessions[i].local = i % 4 == 3;
    return sessions;
  }
  int64_t checked() const { return engine_->drafted(Drafter::kModel); }
  int64_t right() const { return engine_->accepted(Drafter::kModel); }

  ManualClock still_;  // so that the number of guesses does not depend on the machine
};

TEST_F(DraftModelEngineTest, AnEqualModelIsAlwaysRight) {
  Make(4000, 0);
  std::vector<TestSession> sessions = Some(60);
  Serve(sessions);
  EXPECT_GT(checked(), 300);
  EXPECT_EQ(right(), checked());
  EXPECT_EQ(engine_->drafted(Drafter::kNgram), 0);
}

TEST_F(DraftModelEngineTest, OneSequenceTakesFewSteps) {
  Make(4000, 0);
  std::vector<TestSession> sessions = Some(1);
  sessions[0].answers = 400;
  sessions[0].choices = 1;
  Serve(sessions);
  EXPECT_EQ(right(), checked());
  EXPECT_EQ(engine_->steps() + right(), 399);
  EXPECT_LT(engine_->steps(), 399 / 6 + 20);  // seven tokens a step, once the prompt is computed
}

TEST_F(DraftModelEngineTest, AWrongModelChangesNothing) {
  draft_runner_.errs_at = 3;
  StartWithAll();
  Make(4000, 0);
  std::vector<TestSession> sessions = Some(60);
  Serve(sessions);
  EXPECT_GT(right(), 50);  // how many depends on which sequences share their steps
  EXPECT_LT(right(), checked());
}

// The first prompt costs the draft model about two steps, which 60 steps earn. Then its acceptance
// is known, and the next prompt needs to earn nothing.
TEST_F(DraftModelEngineTest, TheFirstPromptWaitsUntilStepsHaveEarnedIt) {
  std::atomic<int64_t> begun = -1;  // the step in which a prompt is begun
  draft_runner_.before_step = [&] {
    if (begun < 0) begun = engine_->steps();
  };
  Make(4000, 0);
  std::vector<TestSession> sessions(1);
  sessions[0].prompt.assign(3000, 7);
  sessions[0].answers = 200;
  sessions[0].key = {.session = 1, .epoch = 0, .nonce = 1};
  Serve(sessions);
  EXPECT_GE(begun, 40);
  EXPECT_LE(begun, 80);
  EXPECT_GT(right(), 50);
  const int64_t before = engine_->steps();
  begun = -1;
  sessions[0].prompt.assign(3000, 8);
  sessions[0].key.session = 2;
  Serve(sessions);
  EXPECT_GE(begun, before);
  EXPECT_LE(begun, before + 10);
}

TEST_F(DraftModelEngineTest, PreemptedSessionsGoOnExactly) {
  Make(90, 4000);
  ServeUntilPreempted(5, [] { return Some(60); });
  EXPECT_GT(checked(), 300);
  EXPECT_EQ(right(), checked());
}

// A long prompt costs more than the guesses of a short answer save.
TEST_F(DraftModelEngineTest, ShortAnswersToLongPromptsGetNoKv) {
  Make(4000, 0);
  std::vector<TestSession> sessions(1);
  sessions[0].key = {.session = 1, .epoch = 0, .nonce = 1};
  sessions[0].prompt.assign(2000, 7);
  sessions[0].answers = 8;
  Serve(sessions);
  EXPECT_EQ(draft_runner_.most_tokens, 0);
  sessions[0].answers = 200;
  sessions[0].key.session = 2;
  Serve(sessions);
  EXPECT_GT(draft_runner_.most_tokens, 0);
}

// Sequences without room in the draft model's pool are decoded plainly.
TEST_F(DraftModelEngineTest, ASmallPoolOfTheDraftModelIsEnough) {
  draft_blocks_ = 40;
  Make(4000, 0);
  std::vector<TestSession> sessions = Some(60);
  Serve(sessions);
  EXPECT_GT(checked(), 50);
  EXPECT_EQ(right(), checked());
}

TEST_F(DraftModelEngineTest, TheSequencesOwnTokensMayGuessToo) {
  ngrams_ = true;
  runner_.repeats = true;
  draft_runner_.repeats = true;
  draft_runner_.errs_at = 2;
  StartWithAll();
  Make(4000, 0);
  std::vector<TestSession> sessions = Some(60);
  Serve(sessions);
  EXPECT_GT(right(), 20);
  EXPECT_GT(engine_->accepted(Drafter::kNgram), 20);
}

TEST_F(DraftModelEngineTest, ARunnerThatDrawsGuessesByItself) {
  draft_runner_.draws = true;
  Make(4000, 0);
  std::vector<TestSession> sessions = Some(20);
  Serve(sessions);
  EXPECT_GT(draft_runner_.drawn, 300);
  EXPECT_EQ(right(), checked());
}

// An error of the draft model's runner ends no session: the worker goes on without it.
TEST_F(DraftModelEngineTest, AFailedModelEndsNoSession) {
  int steps = 0;
  draft_runner_.fails = [&steps] { return ++steps > 20; };
  Make(4000, 0);
  std::vector<TestSession> sessions = Some(60);
  Serve(sessions);
  EXPECT_EQ(steps, 21);
}

}  // namespace
}  // namespace penstock
