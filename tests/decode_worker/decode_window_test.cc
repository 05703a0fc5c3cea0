// The decode engine with a model whose layers all have a window: sequences hold what their window
// sees, exchange blocks in pools that have no more, and their answers are those of all tokens.

#include <gtest/gtest.h>

#include "tests/decode_worker/decode_engine_fixture.h"

namespace penstock {
namespace {

class DecodeWindowTest : public DecodeEngineTest {
 protected:
  DecodeWindowTest() { runner_.window = 100; }

  ManualClock still_;  // so that the number of guesses does not depend on the machine

  // A session whose first token the fixture knows; one choice.
  static TestSession One(uint32_t number, size_t prompt, int answers) {
    TestSession session;
    session.key = {.session = number, .epoch = 0, .nonce = 1};
    session.prompt.resize(prompt);
    for (size_t i = 0; i < prompt; ++i) {
      session.prompt[i] = static_cast<uint32_t>(i * i * number) % kHashVocab;
    }
    session.answers = answers;
    return session;
  }
};

// 99 tokens before the next one, up to 15 in the same block, 16 for a move, and the next.
constexpr int64_t kBlocks = (99 + 15 + 16 + 1 + 15) / 16;

TEST_F(DecodeWindowTest, ALongSequenceHoldsOneWindow) {
  for (const int64_t swap : {0, 100}) {
    runner_.before_step = [this] { EXPECT_LE(pool_->blocks_used(), kBlocks); };
    Make(kBlocks, swap);
    std::vector<TestSession> sessions;
    sessions.push_back(One(1, 40, 600));
    sessions.push_back(One(2, 500, 600));
    Serve(sessions);
    TearDown();
  }
}

// A prompt whose tokens are computed here, 64 in a step.
TEST_F(DecodeWindowTest, SoDoesAPromptThatIsComputedHere) {
  static constexpr int64_t kWithChunk = (99 + 15 + 64 + 15) / 16;
  runner_.before_step = [this] { EXPECT_LE(pool_->blocks_used(), kWithChunk); };
  Make(kWithChunk, 0);
  std::vector<TestSession> sessions;
  sessions.push_back(One(1, 700, 300));
  sessions.front().local = true;
  Serve(sessions);
}

TEST_F(DecodeWindowTest, ManySessionsExchangeTheirBlocks) {
  Make(60, 0);
  std::vector<TestSession> sessions = Mixed(60, 200, 4);
  for (size_t i = 0; i < sessions.size(); ++i) sessions[i].local = i % 4 == 3;
  Serve(sessions);
  EXPECT_EQ(engine_->preemptions(), 0);
}

// With guesses, which take blocks ahead, and sessions that are swapped out and in.
TEST_F(DecodeWindowTest, PreemptedSessionsGoOnExactly) {
  engine_clock_ = &still_;
  draft_tokens_ = 6;
  runner_.repeats = true;
  Make(60, 4000);
  ServeUntilPreempted(5, [] {
    std::vector<TestSession> sessions = Mixed(60, 200, 4);
    for (size_t i = 0; i < sessions.size(); ++i) sessions[i].local = i % 4 == 3;
    return sessions;
  });
  EXPECT_GT(engine_->accepted(), 100);
}

// Sessions of equal prompts share blocks, and part when their windows have passed them: the blocks
// of each come free at another time. All of them get on.
TEST_F(DecodeWindowTest, SessionsThatShareAPromptPart) {
  Make(60, 0);
  for (int round = 0; round < 5; ++round) {
    std::vector<TestSession> sessions;
    for (uint32_t i = 0; i < 12; ++i) {
      sessions.push_back(One(1, 90 + 7 * (i % 3), 100 + 40 * static_cast<int>(i)));
      sessions.back().key.session = 100 * static_cast<uint64_t>(round) + i + 1;
      sessions.back().first = 3 + i;
      sessions.back().choices = i % 4 == 1 ? 2 : 1;
    }
    for (TestSession& session : sessions) source_->Add(session);
    for (TestSession& session : sessions) {
      ASSERT_TRUE(session.sink->Await().ok());
      const auto tokens = session.sink->tokens();
      auto expected =
          HashAnswer(session.prompt, *session.first, session.answers, false, runner_.window);
      expected.erase(expected.begin());
      for (const auto& [choice, answer] : tokens) EXPECT_EQ(answer, expected);
    }
  }
}

// The next turn of a conversation that was here from its first token on, while the cache has all.
TEST_F(DecodeWindowTest, TheNextTurnFindsTheWindowOfTheLast) {
  Make(2000, 0);
  std::vector<TestSession> sessions;
  sessions.push_back(One(1, 80, 400));
  Serve(sessions);
  EXPECT_EQ(pool_->blocks_used(), 0);
  std::vector<TestSession> next;
  next.push_back(One(2, 0, 300));
  next.front().prompt = sessions.front().prompt;
  const auto answer = HashAnswer(next.front().prompt, First(0), 400, false, runner_.window);
  next.front().prompt.insert(next.front().prompt.end(), answer.begin(), answer.end());
  Serve(next);
  // Of 29 whole blocks those that token 480 sees.
  EXPECT_EQ(source_->restored(), 29 - (480 - 99) / 16);
}

}  // namespace
}  // namespace penstock
