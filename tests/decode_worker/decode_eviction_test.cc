// The decode engine with sequences that are evicted while decoding: they hold what their policy
// allows and no more, and their tokens do not depend on pools, batches, guesses and other choices.

#include <gtest/gtest.h>

#include "tests/decode_worker/decode_engine_fixture.h"

namespace penstock {
namespace {

const KvEviction kEviction = *EvictionOf("streaming:64+32");
constexpr int64_t kBlocks = (64 + 32) / 16;

class DecodeEvictionTest : public DecodeEngineTest {
 protected:
  DecodeEvictionTest() { runner_.evicts = true; }

  ManualClock still_;  // so that the number of guesses does not depend on the machine

  static TestSession One(uint64_t number, size_t prompt, int answers, uint32_t choices = 1) {
    TestSession session;
    session.key = {.session = number, .epoch = 0, .nonce = 1};
    session.prompt.resize(prompt);
    for (size_t i = 0; i < prompt; ++i) {
      session.prompt[i] = static_cast<uint32_t>(i * i * number) % kHashVocab;
    }
    session.answers = answers;
    session.choices = choices;
    session.eviction = kEviction;
    return session;
  }

  static std::vector<TestSession> Many(int count) {
    std::mt19937 random(5);
    std::vector<TestSession> sessions;
    for (int i = 0; i < count; ++i) {
      const auto choices = static_cast<uint32_t>(1 + random() % 3);
      sessions.push_back(One(static_cast<uint64_t>(i) + 1, 1 + random() % 64,
                             2 + static_cast<int>(random() % 400), choices));
      if (i % 4 != 0) continue;
      sessions.back().eviction.reset();
      sessions.back().choices = 1;  // so that it fits in the pools here
    }
    return sessions;
  }

  int64_t Dropped(const TestSession& session) const {
    if (!session.eviction || session.answers < 2) return 0;
    const auto prompt = static_cast<uint32_t>(session.prompt.size());
    const auto before_last = prompt + static_cast<uint32_t>(session.answers) - 2;
    return int64_t{session.choices} * session.eviction->EvictedAt(prompt, before_last);
  }
};

// 2,000 tokens in the pages of 96, whether the session can be swapped out or not.
TEST_F(DecodeEvictionTest, ALongAnswerRunsInAPoolOfItsLimit) {
  for (const int64_t swap : {0, 1000}) {
    Make(kBlocks, swap);
    std::vector<TestSession> sessions;
    sessions.push_back(One(1, 40, 2000));
    Serve(sessions);
    EXPECT_EQ(engine_->decode_evicted_tokens(), Dropped(sessions[0]));
    EXPECT_EQ(engine_->compactions(), (40 + 1998 - 64) / 32);
    TearDown();
  }
}

// The prompt's blocks are shared until each choice has its own, the last one the shared ones.
TEST_F(DecodeEvictionTest, ChoicesPart) {
  for (const int64_t swap : {0, 1000}) {
    Make(4 * kBlocks, swap);
    std::vector<TestSession> sessions;
    sessions.push_back(One(1, 64, 500, 4));
    Serve(sessions);
    EXPECT_EQ(engine_->decode_evicted_tokens(), Dropped(sessions[0]));
    TearDown();
  }
}

// An answer that ends when it holds as much as it may is never compacted, and is that without a
// policy; one more token, and it is.
TEST_F(DecodeEvictionTest, WithinTheLimitNothingChanges) {
  Make(100, 0);
  std::vector<TestSession> sessions;
  sessions.push_back(One(1, 40, 96 - 40 + 1));
  sessions.push_back(One(2, 40, 96 - 40 + 2));
  Serve(sessions);
  EXPECT_EQ(engine_->compactions(), 1);
  EXPECT_EQ(HashAnswer(sessions[0].prompt, 3, sessions[0].answers),
            HashAnswer(sessions[0].prompt, 3, sessions[0].answers, false, 0, kEviction));
  EXPECT_NE(HashAnswer(sessions[1].prompt, 3, sessions[1].answers),
            HashAnswer(sessions[1].prompt, 3, sessions[1].answers, false, 0, kEviction));
}

TEST_F(DecodeEvictionTest, WithoutATierSessionsTakeWhatTheirLimitsNeed) {
  Make(60, 0);
  std::vector<TestSession> sessions = Many(60);
  Serve(sessions);
  int64_t dropped = 0;
  for (const TestSession& session : sessions) dropped += Dropped(session);
  EXPECT_EQ(engine_->decode_evicted_tokens(), dropped);
}

// With guesses, which end at the limit, beside sequences without a policy.
TEST_F(DecodeEvictionTest, PreemptedSessionsGoOnExactly) {
  engine_clock_ = &still_;
  draft_tokens_ = 6;
  runner_.repeats = true;
  Make(60, 4000);
  int64_t dropped = 0;
  ServeUntilPreempted(5, [&] {
    std::vector<TestSession> sessions = Many(60);
    for (const TestSession& session : sessions) dropped += Dropped(session);
    return sessions;
  });
  EXPECT_GT(engine_->accepted(), 100);
  EXPECT_EQ(engine_->decode_evicted_tokens(), dropped);
}

// A move sends what the schedule says of the request's tokens. Behind a compaction there is no KV
// of fewer tokens any more.
TEST_F(DecodeEvictionTest, NoMoveStartsBeforeTheLastCompaction) {
  DecodeJob job;
  job.tokens.assign(100, 7);
  job.prompt_tokens = 40;
  job.eviction = kEviction;
  job.evicted = 32;
  const std::shared_ptr<DecodeSession> session = MakeSession(job);
  DecodeSequence sequence = MakeSequence(session, job, 0, 16);
  sequence.last_token = 7;
  EXPECT_EQ(sequence.position(), 100);
  const auto check = [&](size_t tokens) {
    FreezeRequest request;
    request.tokens.assign(tokens, 7);
    request.last_token = 7;
    return sequence.CheckFreeze(request, kHashLayout);
  };
  EXPECT_TRUE(check(100).ok()) << check(100);
  EXPECT_TRUE(check(96).ok()) << check(96);
  EXPECT_TRUE(absl::IsFailedPrecondition(check(95)));
  EXPECT_NE(check(95).message().find("has been compacted since"), std::string::npos) << check(95);
}

// Nothing of it is in a cache, not even its prompt: a compaction writes into those pages.
TEST_F(DecodeEvictionTest, NoCacheGetsAnyOfIt) {
  Make(100, 0);
  std::vector<TestSession> sessions;
  sessions.push_back(One(1, 64, 200));
  Serve(sessions);
  EXPECT_EQ(pool_->blocks_cached(), 0);
}

}  // namespace
}  // namespace penstock
