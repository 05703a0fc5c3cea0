// The decode engine: sessions that preempt each other, end, or compute their own prompts.

#include "decode_worker/engine/decode_engine.h"

#include <gtest/gtest.h>

#include <cstdio>
#include <thread>

#include "tests/decode_worker/decode_engine_fixture.h"

namespace penstock {
namespace {

TEST_F(DecodeEngineTest, PreemptedSessionsGoOnExactly) {
  Make(90, 4000);
  ServeUntilPreempted(5, [] { return Mixed(60, 80, 5); });
}

// The longest session that is admitted takes the whole pool, and is swapped in again, too.
TEST_F(DecodeEngineTest, ASessionThatMayTakeTheWholePoolComesBack) {
  Make(20, 4000);
  ServeUntilPreempted(5, [] {
    std::vector<TestSession> sessions(8);
    for (size_t i = 0; i < sessions.size(); ++i) {
      sessions[i].key = {.session = i + 1, .epoch = 0, .nonce = 1};
      sessions[i].prompt.assign(30, static_cast<uint32_t>(i));
      sessions[i].answers = 20 * 16 - 30 + 1;
    }
    return sessions;
  });
}

TEST_F(DecodeEngineTest, WithoutATierSessionsWaitForAdmission) {
  Make(90, 0);
  std::vector<TestSession> sessions = Mixed(40, 80, 5);
  Serve(sessions);
  EXPECT_EQ(engine_->preemptions(), 0);
}

// Some have room to be swapped out, and others take all that they need at once.
TEST_F(DecodeEngineTest, WithLittleRoomToSwapAllEnd) {
  Make(90, 60);
  ServeUntilPreempted(0, [] { return Mixed(120, 80, 5); });
}

TEST_F(DecodeEngineTest, PrefixesComeBackFromTheTierBelow) {
  Make(90, 4000);
  std::vector<TestSession> first = Mixed(40, 80, 5);
  Serve(first);
  const int64_t before = source_->restored();
  const auto enough = [&] {
    return source_->restored() - before > 100 && store_->stats().dram.restores > 100;
  };
  // The store takes no blocks that come faster than it copies, so one round may find fewer of them.
  for (int round = 0; round < 5 && !enough(); ++round) {
    std::vector<TestSession> again = Mixed(40, 80, 5);
    Serve(again);
  }
  EXPECT_GT(source_->restored() - before, 100);
  EXPECT_GT(store_->stats().dram.restores, 100u);
}

TEST_F(DecodeEngineTest, ACancelledSessionLeavesNothingWhereverItIs) {
  Make(90, 4000);
  std::vector<TestSession> sessions = Mixed(80, 80, 5);
  std::mt19937 random(1);
  for (size_t i = 0; i < sessions.size(); ++i) {
    source_->Add(sessions[i]);
    const size_t other = random() % (i + 1) / 2 * 2 + 1;
    if (other <= i) source_->Cancel(sessions[other]);
  }
  for (size_t i = 1; i < sessions.size(); i += 2) source_->Cancel(sessions[i]);
  for (size_t i = 0; i < sessions.size(); i += 2) ExpectExact(sessions[i]);
}

TEST_F(DecodeEngineTest, StoppedInTheMiddleEverySessionIsToldOnce) {
  std::atomic<bool> in_the_middle = false, stops = false;
  StartWithAll();
  Make(90, 4000);
  runner_.before_step = [&] {  // so that some are left when the engine is told to stop
    if (engine_->preemptions() < 3) return;
    in_the_middle = true;
    while (!stops) std::this_thread::yield();
  };
  std::vector<TestSession> sessions = Mixed(60, 80, 5);
  for (TestSession& session : sessions) source_->Add(session);
  engine_->Start();
  while (!in_the_middle) std::this_thread::yield();
  stops = true;
  engine_->Stop();
  int unavailable = 0;
  for (TestSession& session : sessions) {
    source_->Cancel(session);  // In the queue, if it is still there.
    if (session.sink->ended()) unavailable += session.sink->Await().ok() ? 0 : 1;
  }
  EXPECT_GT(unavailable, 0);
}

// Short and long sessions, more of them than fit: how much of the pool holds their KV. One sample
// each step, while sessions wait. A real step takes longer than the store's copies, so these end
// first.
TEST_F(DecodeEngineTest, UnderPressureThePoolIsFull) {
  StartWithAll();
  Make(2000, 20000, 128);
  double used = 0;
  int64_t samples = 0;
  runner_.before_step = [&] {
    store_->WaitUntilQuiet();
    source_->OnRoom();  // all that fit are admitted; the others wait for blocks
    if (!source_->waiting()) return;
    used +=
        static_cast<double>(pool_->blocks_total() - pool_->blocks_free() - pool_->blocks_cached());
    ++samples;
  };
  std::vector<TestSession> sessions = Mixed(400, 100, 10);
  Serve(sessions);
  ASSERT_GT(samples, 100);
  const double utilisation =
      used / static_cast<double>(samples) / static_cast<double>(pool_->blocks_total());
  RecordProperty("kv_utilisation", std::to_string(utilisation));
  std::printf("KV memory utilisation under pressure: %.3f (%lld steps, %lld preemptions)\n",
              utilisation, static_cast<long long>(samples),
              static_cast<long long>(engine_->preemptions()));
  EXPECT_GT(utilisation, 0.96);
}

// Some sessions' tokens are drawn by the runner, others need their logits here.
TEST_F(DecodeEngineTest, TheRunnerDrawsTokensThatNeedNoLogits) {
  runner_.draws = true;
  Make(90, 4000);
  std::vector<TestSession> sessions = Mixed(60, 80, 5);
  for (size_t i = 0; i < sessions.size(); ++i) {
    sessions[i].local = i % 2 == 0;
    if (i % 3 == 0) sessions[i].sampling.top_logprobs = 2;
  }
  Serve(sessions);
  EXPECT_GT(runner_.drawn, runner_.given);
  EXPECT_GT(runner_.given, 0);
}

// Beside the answers of others, in chunks, with what the tiers have of it already.
// Where tokens were when the engine told of its turns.
class TurnRecord {
 public:
  void EndTurn(size_t tokens) EXCLUDES(mutex_) {
    MutexLock lock(mutex_);
    (in_step_ ? in_steps_ : between_) += tokens - told_;
    told_ = tokens;
    told_now_.NotifyAll();
  }
  void SetInStep(bool in_step) EXCLUDES(mutex_) {
    MutexLock lock(mutex_);
    in_step_ = in_step;
  }
  // Waits until all of `tokens` were told.
  bool Await(size_t tokens) EXCLUDES(mutex_) {
    MutexLock lock(mutex_);
    for (int i = 0; i < 600 && told_ < tokens; ++i) {
      told_now_.WaitFor(mutex_, std::chrono::milliseconds(100));
    }
    return told_ == tokens;
  }
  size_t in_steps() EXCLUDES(mutex_) {
    MutexLock lock(mutex_);
    return in_steps_;
  }
  size_t between() EXCLUDES(mutex_) {
    MutexLock lock(mutex_);
    return between_;
  }

 private:
  Mutex mutex_;
  CondVar told_now_;
  bool in_step_ GUARDED_BY(mutex_) = false;
  size_t told_ GUARDED_BY(mutex_) = 0;
  size_t in_steps_ GUARDED_BY(mutex_) = 0;  // told while a step was computed
  size_t between_ GUARDED_BY(mutex_) = 0;
};

class DecodeTurnTest : public DecodeEngineTest {
 protected:
  // Serves one session, whose steps give 9 tokens.
  void ServeOne() {
    std::vector<TestSession> sessions(1);
    sessions[0].key = {.session = 1, .epoch = 0, .nonce = 1};
    sessions[0].prompt.assign(30, 5);
    sessions[0].answers = 10;
    runner_.before_step = [this] { turns_.SetInStep(true); };
    runner_.fails = [this] {  // behind StepArgs::meanwhile
      turns_.SetInStep(false);
      return false;
    };
    on_turn_ = [&] { turns_.EndTurn(sessions[0].sink->tokens()[0].size()); };
    StartWithAll();
    Make(20, 0);
    Serve(sessions);
    EXPECT_TRUE(turns_.Await(9));  // while the engine waits for a further session
    engine_->Stop();
  }

  TurnRecord turns_;
};

TEST_F(DecodeTurnTest, TokensAreToldBetweenStepsOnACpu) {
  ServeOne();
  EXPECT_EQ(turns_.in_steps(), 0);
  EXPECT_EQ(turns_.between(), 9);
}

TEST_F(DecodeTurnTest, TokensAreToldWhileAGpuComputesTheNextStep) {
  runner_.beside_caller = true;
  ServeOne();
  EXPECT_EQ(turns_.in_steps(), 8);
  EXPECT_EQ(turns_.between(), 1);  // no step follows the last one
}

TEST_F(DecodeEngineTest, TheEndsOfPromptsAreComputedHere) {
  Make(90, 4000);
  std::vector<TestSession> before = Mixed(40, 80, 5);
  Serve(before);
  std::vector<TestSession> sessions = Mixed(40, 80, 5);
  for (size_t i = 0; i < sessions.size(); ++i) {
    sessions[i].local = i % 2 == 0;
    sessions[i].key.nonce = 2;
    if (i % 4 == 0) sessions[i].prompt.push_back(7);
  }
  Serve(sessions);
  uint32_t cached = 0;
  for (TestSession& session : sessions) {
    if (!session.local) continue;
    const v1::FirstTokens first = session.sink->first();
    ASSERT_EQ(first.tokens_size(), static_cast<int>(session.choices));
    EXPECT_EQ(first.tokens(0).token(), FirstHashToken(session.prompt));
    EXPECT_EQ(first.cached_tokens() + first.computed_tokens(), session.prompt.size());
    EXPECT_GT(first.computed_tokens(), 0u);
    cached += first.cached_tokens();
  }
  EXPECT_GT(cached, 100u);
}

TEST_F(DecodeEngineTest, ACancelledPromptLeavesNothing) {
  Make(90, 4000);
  std::vector<TestSession> sessions = Mixed(60, 80, 5);
  for (size_t i = 0; i < sessions.size(); ++i) {
    sessions[i].local = true;
    source_->Add(sessions[i]);
    if (i % 2 == 1) source_->Cancel(sessions[i - i % 4]);
  }
  for (size_t i = 0; i < sessions.size(); ++i) {
    if (i % 4 != 0) ExpectExact(sessions[i]);
  }
}

TEST_F(DecodeEngineTest, ARowThatTheModelRefusesEndsItsOwnSessionOnly) {
  Make(90, 4000);
  std::vector<TestSession> sessions = Mixed(40, 80, 5);
  for (size_t i = 0; i < sessions.size(); ++i) sessions[i].local = i % 2 == 0;
  for (const size_t bad : {3, 9, 27}) sessions[bad].first = kHashVocab;
  for (const size_t bad : {4, 20}) sessions[bad].prompt.back() = 0xffffffff;
  for (TestSession& session : sessions) source_->Add(session);
  for (TestSession& session : sessions) {
    if (session.first || session.prompt.back() >= kHashVocab) {
      EXPECT_TRUE(absl::IsInternal(session.sink->Await())) << session.sink->Await();
    } else {
      ExpectExact(session);
    }
  }
}

}  // namespace
}  // namespace penstock
