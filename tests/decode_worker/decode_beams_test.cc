// The decode engine: beam searches, whose beams share, copy and release blocks at every step.

#include <gtest/gtest.h>

#include "tests/decode_worker/decode_engine_fixture.h"

namespace penstock {
namespace {

class DecodeBeamsTest : public DecodeEngineTest {
 protected:
  DecodeBeamsTest() { runner_.unsure = true; }

  // Sessions with beam searches of 2 to 8 beams and some stop tokens.
  static std::vector<TestSession> Searches(int count, uint32_t prompt_max, int answers_max = 40) {
    std::vector<TestSession> sessions = Mixed(count, prompt_max, 2);
    for (size_t i = 0; i < sessions.size(); ++i) {
      TestSession& session = sessions[i];
      const int32_t width = 2 + static_cast<int32_t>(i % 7);
      session.choices = 1 + static_cast<uint32_t>(i) % 2;
      session.answers = 1 + session.answers % answers_max;
      if (i % 3 == 0) session.sampling.repetition_penalty = 1.2f;
      session.beams = BeamRules{.width = width,
                                .answers = static_cast<int32_t>(session.choices),
                                .early_stopping = static_cast<EarlyStopping>(i % 3),
                                .tokens_max = session.answers};
      if (i % 2 == 0) session.beams->stop_token_ids = {3, 17};
    }
    return sessions;
  }

  // The answers by the same search, which computes every beam from its tokens alone.
  std::vector<std::vector<uint32_t>> Expected(const TestSession& session) const {
    struct Path {
      Sampler sampler;
      std::vector<uint32_t> tokens;
    };
    BeamSearch search(*session.beams);
    std::vector<Path> paths;
    paths.push_back({Sampler(session.sampling, 0, session.prompt), session.prompt});
    while (!search.ended()) {
      for (size_t i = 0; i < paths.size(); ++i) {
        std::vector<float> logits = HashLogits(paths[i].tokens, runner_.window);
        const auto count = static_cast<size_t>(session.beams->candidates());
        search.Offer(static_cast<int32_t>(i), *paths[i].sampler.Rank(logits, count));
      }
      std::vector<Path> next;
      const std::vector<BeamChild> children = *search.Advance();
      for (const BeamChild& child : children) {
        const Path& parent = paths[static_cast<size_t>(child.parent)];
        next.push_back({parent.sampler.Fork(), parent.tokens});
        next.back().sampler.Observe(child.token);
        next.back().tokens.push_back(child.token);
      }
      paths = std::move(next);
    }
    std::vector<std::vector<uint32_t>> answers;
    for (const BeamAnswer& answer : search.TakeAnswers()) {
      std::vector<uint32_t>& ids = answers.emplace_back();
      for (const BeamToken& token : answer.tokens) ids.push_back(token.id);
    }
    return answers;
  }

  void ExpectFound(TestSession& session) {
    const absl::Status status = session.sink->Await();
    ASSERT_TRUE(status.ok()) << status;
    auto tokens = session.sink->tokens();
    const std::vector<std::vector<uint32_t>> expected = Expected(session);
    ASSERT_EQ(tokens.size(), expected.size());
    for (uint32_t i = 0; i < expected.size(); ++i) EXPECT_EQ(tokens[i], expected[i]) << i;
  }
};

TEST_F(DecodeBeamsTest, FindWhatSequencesByThemselvesGive) {
  Make(2000, 0);
  std::vector<TestSession> sessions = Searches(40, 80);
  for (TestSession& session : sessions) source_->Add(session);
  for (TestSession& session : sessions) ExpectFound(session);
}

// A step has room for some beams of a search only, and others' tokens are drawn beside them.
TEST_F(DecodeBeamsTest, AreSplitOverSmallBatches) {
  Make(2000, 0, /*batch=*/3);
  std::vector<TestSession> sessions = Searches(20, 60);
  std::vector<TestSession> others = Mixed(20, 30, 2);
  for (size_t i = 0; i < others.size(); ++i) others[i].key.session = 1000 + i;
  for (size_t i = 0; i < sessions.size(); ++i) {
    source_->Add(sessions[i]);
    source_->Add(others[i]);
  }
  for (TestSession& session : sessions) ExpectFound(session);
  for (TestSession& other : others) EXPECT_TRUE(other.sink->Await().ok());
}

TEST_F(DecodeBeamsTest, GoOnExactlyWhenPreempted) {
  Make(100, 4000, /*batch=*/30);
  // A search is preempted only beside enough others, so all are there before the first step.
  for (int round = 0; round < 20 && engine_->preemptions() == 0; ++round) {
    std::vector<TestSession> sessions = Searches(80, 100, 150);
    runner_.waits = true;
    for (TestSession& session : sessions) source_->Add(session);
    runner_.waits = false;
    for (TestSession& session : sessions) ExpectFound(session);
  }
  EXPECT_GT(engine_->preemptions(), 0);
}

TEST_F(DecodeBeamsTest, BeginBehindPromptsThatAreComputedHere) {
  Make(2000, 0);
  std::vector<TestSession> sessions = Searches(20, 80);
  for (TestSession& session : sessions) session.local = true;
  for (TestSession& session : sessions) source_->Add(session);
  for (TestSession& session : sessions) ExpectFound(session);
}

// Beams give up the blocks that their window has passed, with room for them and without.
TEST_F(DecodeBeamsTest, PassTheirWindow) {
  runner_.window = 40;
  for (const int64_t swap : {0, 4000}) {
    Make(100, swap);
    std::vector<TestSession> sessions = Searches(40, 120, 150);
    for (TestSession& session : sessions) source_->Add(session);
    for (TestSession& session : sessions) ExpectFound(session);
    TearDown();
  }
}

TEST_F(DecodeBeamsTest, ACancelledSearchLeavesNothing) {
  Make(120, 4000, /*batch=*/6);
  std::vector<TestSession> sessions = Searches(40, 80);
  for (TestSession& session : sessions) source_->Add(session);
  for (size_t i = 1; i < sessions.size(); i += 2) source_->Cancel(sessions[i]);
  for (size_t i = 0; i < sessions.size(); i += 2) ExpectFound(sessions[i]);
}

// What four beams hold behind a long prompt: the prompt once, and four tails at most.
TEST_F(DecodeBeamsTest, HoldLittleMoreThanOneSequence) {
  Make(2000, 0);
  TestSession session{.key = {.session = 1, .epoch = 0, .nonce = 1}, .answers = 33};
  for (uint32_t i = 0; i < 1000; ++i) session.prompt.push_back(i % kHashVocab);
  session.beams = BeamRules{.width = 4, .answers = 1, .tokens_max = session.answers};
  std::atomic<int64_t> most = 0;
  runner_.before_step = [&] {
    // The rest of the credit counts as reserved, not as used.
    most = std::max<int64_t>(most, pool_->blocks_used());
  };
  source_->Add(session);
  ExpectFound(session);
  const int64_t one = kHashLayout.BlocksFor(1000 + session.answers - 1);
  EXPECT_GE(most, one);
  EXPECT_LE(static_cast<double>(most), 1.15 * static_cast<double>(one)) << one;
}

}  // namespace
}  // namespace penstock
