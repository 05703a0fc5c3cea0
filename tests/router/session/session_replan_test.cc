// Sessions whose workers fail, contradict themselves or cannot be had.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "router/request/error_detail.h"
#include "tests/router/session/session_fixture.h"

namespace penstock {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using namespace std::chrono_literals;

TEST_F(SessionTest, GoesOnExactlyWhereADecodeWorkerDied) {
  Begin(1, 30);
  std::vector<FakeChoice> choices = ChoicesOf(world_.opened[0]);
  SendFirst(world_.opened[0], choices);
  for (int i = 0; i < 11; ++i) SendToken(world_.opened[0], choices[0]);
  Break(world_.opened[0], Side::kDecode);
  ASSERT_EQ(world_.opened.size(), 2u);
  EXPECT_TRUE(world_.opened[0].prefill_cancelled);
  const Opened& second = world_.opened[1];
  EXPECT_EQ(second.prefill.tokens_size(), 5 + 12);
  EXPECT_EQ(second.prefill.prompt_tokens(), 5u);
  EXPECT_EQ(second.prefill.key().session(), world_.opened[0].prefill.key().session());
  EXPECT_EQ(second.prefill.key().epoch(), 1u);
  EXPECT_NE(second.prefill.key().nonce(), world_.opened[0].prefill.key().nonce());
  EXPECT_EQ(world_.failures_seen, (WorkerFailures{{{"d:1", 1}, 2}})) << "its KV had arrived";
  EXPECT_EQ(world_.needs[1].format, (KvFormat{1, 2, 16}));
  Answer(second);
  EXPECT_TRUE(world_.finished->ok()) << *world_.finished;
  EXPECT_EQ(world_.text[0], Expected(0, 30));
  EXPECT_EQ(world_.endings[0].usage().recomputed_tokens(), 17u);
  EXPECT_EQ(world_.reserved, 0);
}

TEST_F(SessionTest, PlansAnewWhenAPrefillWorkerDiesBeforeTheFirstToken) {
  Begin(2, 10);
  Break(world_.opened[0], Side::kPrefill);
  ASSERT_EQ(world_.opened.size(), 2u);
  EXPECT_EQ(world_.failures_seen, (WorkerFailures{{{"p:1", 1}, 2}, {{"d:1", 1}, 1}}));
  EXPECT_FALSE(world_.needs[1].format.has_value()) << "nothing is answered yet";
  // Messages of the failed first attempt are ignored.
  std::vector<FakeChoice> late = ChoicesOf(world_.opened[0]);
  SendFirst(world_.opened[0], late);
  EXPECT_EQ(world_.text[0], "");
  Answer(world_.opened[1]);
  EXPECT_EQ(world_.text[0], Expected(0, 10));
  EXPECT_EQ(world_.text[1], Expected(1, 10));
}

TEST_F(SessionTest, APrefillWorkerMayDieOnceItsKvHasArrived) {
  Begin(1, 10);
  std::vector<FakeChoice> choices = ChoicesOf(world_.opened[0]);
  SendFirst(world_.opened[0], choices);
  SendToken(world_.opened[0], choices[0]);
  Break(world_.opened[0], Side::kPrefill);
  EXPECT_EQ(world_.opened.size(), 1u);
  while (!choices[0].ended()) SendToken(world_.opened[0], choices[0]);
  EXPECT_EQ(world_.text[0], Expected(0, 10));
}

TEST_F(SessionTest, ChoicesThatDifferGoOnInALegEach) {
  Begin(4, 12);
  std::vector<FakeChoice> choices = ChoicesOf(world_.opened[0]);
  SendFirst(world_.opened[0], choices);
  for (int i = 0; i < 3; ++i) SendToken(world_.opened[0], choices[2]);
  while (!choices[1].ended()) SendToken(world_.opened[0], choices[1]);
  Break(world_.opened[0], Side::kDecode);
  ASSERT_EQ(world_.opened.size(), 4u) << "choices 0, 2 and 3 are open";
  std::vector<uint32_t> firsts;
  std::vector<uint64_t> sessions;
  for (size_t i = 1; i < 4; ++i) {
    firsts.push_back(world_.opened[i].decode.sampling().first_choice());
    sessions.push_back(world_.opened[i].decode.key().session());
    EXPECT_EQ(world_.opened[i].decode.sampling().choices(), 1u);
  }
  EXPECT_THAT(firsts, ElementsAre(0, 2, 3));
  EXPECT_NE(sessions[0], sessions[1]);
  EXPECT_NE(sessions[1], sessions[2]);
  for (size_t i = 1; i < 4; ++i) Answer(world_.opened[i]);
  EXPECT_TRUE(world_.finished->ok()) << *world_.finished;
  for (uint32_t choice = 0; choice < 4; ++choice) {
    EXPECT_EQ(world_.text[choice], Expected(choice, 12)) << choice;
  }
  EXPECT_EQ(world_.endings.size(), 4u);
}

TEST_F(SessionTest, WaitsForAWorkerAndThenGivesUp) {
  world_.placeable = Unavailable("no prefill worker is ready");
  Begin(1, 10);
  EXPECT_FALSE(world_.finished.has_value());
  EXPECT_TRUE(session_->waits_for_worker());
  EXPECT_EQ(world_.wake_at, now_ + 2s);
  now_ += 1s;
  session_->OnWake(now_);
  EXPECT_FALSE(world_.finished.has_value());
  now_ += 1s;
  session_->OnWake(now_);
  ASSERT_TRUE(world_.finished.has_value());
  EXPECT_EQ(world_.finished->code(), absl::StatusCode::kUnavailable);
}

TEST_F(SessionTest, TakesAWorkerThatComesInTime) {
  world_.placeable = Unavailable("no prefill worker is ready");
  Begin(1, 10);
  world_.placeable = absl::OkStatus();
  now_ += 500ms;
  session_->OnWake(now_);
  ASSERT_EQ(world_.opened.size(), 1u);
  Answer(world_.opened[0]);
  EXPECT_EQ(world_.text[0], Expected(0, 10));
}

TEST_F(SessionTest, ANewRequestIsToldAtOnceThatAllAreFull) {
  world_.placeable = ResourceExhausted("full");
  Begin(1, 10);
  ASSERT_TRUE(world_.finished.has_value());
  EXPECT_EQ(world_.finished->code(), absl::StatusCode::kResourceExhausted);
}

TEST_F(SessionTest, ANewRequestWaitsInTheQueueForAWhile) {
  limits_.queue_wait = 1s;
  world_.placeable = WithDetail(ResourceExhausted("full"), {.reason = kReasonOverloaded});
  Begin(1, 10);
  EXPECT_FALSE(world_.finished.has_value());
  EXPECT_TRUE(session_->waits_for_worker());
  EXPECT_EQ(world_.wake_at, now_ + 1s);
  now_ += 500ms;
  session_->OnWake(now_);
  EXPECT_FALSE(world_.finished.has_value());
  now_ += 500ms;
  session_->OnWake(now_);
  ASSERT_TRUE(world_.finished.has_value());
  EXPECT_EQ(world_.finished->code(), absl::StatusCode::kResourceExhausted);
}

TEST_F(SessionTest, ALimitCountsFromReceiptAndOnlyForTheFirstPlan) {
  first_token_limit_ = 400ms;
  Begin(1, 10);
  EXPECT_NEAR(world_.needs[0].ttft_limit_ms, 400, 1e-6);
  Break(world_.opened.back(), Side::kDecode);
  ASSERT_EQ(world_.needs.size(), 2u);
  EXPECT_EQ(world_.needs[1].ttft_limit_ms, 0);
}

TEST_F(SessionTest, GivesUpAfterTheLastPlanAndBacksOffBefore) {
  Begin(1, 10);
  Break(world_.opened.back(), Side::kDecode);
  EXPECT_EQ(world_.opened.size(), 2u) << "the second plan is made at once";
  for (size_t plans = 2; plans < 4; ++plans) {
    Break(world_.opened.back(), Side::kDecode);
    EXPECT_EQ(world_.opened.size(), plans) << "the next waits";
    now_ = *world_.wake_at;
    session_->OnWake(now_);
    EXPECT_EQ(world_.opened.size(), plans + 1);
  }
  Break(world_.opened.back(), Side::kDecode);
  ASSERT_TRUE(world_.finished.has_value());
  EXPECT_EQ(world_.finished->code(), absl::StatusCode::kUnavailable);
  EXPECT_THAT(Message(*world_.finished), HasSubstr("gave up after 4 plans"));
  EXPECT_THAT(Message(*world_.finished), HasSubstr("decode worker d4: Socket closed"));
  EXPECT_EQ(world_.reserved, 0);
}

// The second attempt is made at once, each later one when the session asks to be woken.
void WakeIfItWaits(SessionWorld& world, Session& session, TimePoint& now, size_t opened) {
  if (world.finished || world.opened.size() > opened) return;
  now = *world.wake_at;
  session.OnWake(now);
}

TEST_F(SessionTest, AFullQueueIsWaitedForAndIsNoFailure) {
  limits_.queue_wait = 2s;
  Begin(1, 10);
  for (size_t refusals = 1; refusals <= 5; ++refusals) {
    const bool by_prefill = refusals % 2 == 0;
    Refuse(world_.opened.back(), by_prefill ? Side::kPrefill : Side::kDecode);
    WakeIfItWaits(world_, *session_, now_, refusals);
    ASSERT_EQ(world_.opened.size(), refusals + 1) << "more attempts than a failure is given";
    const Opened& refused = world_.opened[refusals - 1];
    EXPECT_TRUE(by_prefill ? refused.decode_cancelled : refused.prefill_cancelled);
    EXPECT_EQ(world_.opened.back().prefill.key().epoch(), refusals);
  }
  EXPECT_EQ(world_.placed_as_new, 6) << "it keeps its place in the admission queue";
  Answer(world_.opened.back());
  EXPECT_TRUE(world_.finished->ok()) << *world_.finished;
  EXPECT_EQ(world_.text[0], Expected(0, 10));
  EXPECT_EQ(world_.reserved, 0);
}

TEST_F(SessionTest, QueuesThatStayFullEndItAsOverloadedInTime) {
  for (const Duration wait : {Duration(0s), Duration(250ms), Duration(2s)}) {
    world_ = SessionWorld();
    limits_.queue_wait = wait;
    Begin(1, 10);
    const TimePoint begun = now_;
    size_t attempts = 0;
    while (!world_.finished) {
      ++attempts;
      Refuse(world_.opened.back(), Side::kDecode);
      WakeIfItWaits(world_, *session_, now_, attempts);
    }
    EXPECT_GE(attempts, 2u) << "another worker may have room";
    EXPECT_EQ(now_ - begun, wait);
    EXPECT_EQ(world_.finished->code(), absl::StatusCode::kResourceExhausted);
    EXPECT_EQ(DetailOf(*world_.finished).reason, kReasonOverloaded);
    EXPECT_TRUE(DetailOf(*world_.finished).retry_after.has_value());
    EXPECT_THAT(Message(*world_.finished), HasSubstr("64 wait here"));
    EXPECT_EQ(world_.reserved, 0);
  }
}

TEST_F(SessionTest, AFullQueueAndThenAllWorkersFullEndItInTime) {
  limits_.queue_wait = 1s;
  Begin(1, 10);
  const TimePoint begun = now_;
  world_.placeable = WithDetail(ResourceExhausted("full"), {.reason = kReasonOverloaded});
  Refuse(world_.opened.back(), Side::kPrefill);
  EXPECT_TRUE(session_->waits_for_worker());
  while (!world_.finished) WakeIfItWaits(world_, *session_, now_, 1);
  EXPECT_EQ(now_ - begun, 1s);
  EXPECT_EQ(DetailOf(*world_.finished).reason, kReasonOverloaded);
}

// It is no new request any more: it skips the admission queue, and the limit has been kept.
TEST_F(SessionTest, AnAnswerThatHasBegunWaitsAsARetry) {
  first_token_limit_ = 400ms;
  Begin(1, 10);
  std::vector<FakeChoice> choices = ChoicesOf(world_.opened[0]);
  SendFirst(world_.opened[0], choices);
  now_ += 1s;
  Refuse(world_.opened[0], Side::kDecode);
  ASSERT_EQ(world_.opened.size(), 2u);
  EXPECT_EQ(world_.placed_as_new, 1);
  EXPECT_EQ(world_.needs[1].ttft_limit_ms, 0);
  Answer(world_.opened[1]);
  EXPECT_EQ(world_.text[0], Expected(0, 10));
}

TEST_F(SessionTest, AFullQueueCostsNoPlan) {
  limits_.queue_wait = 10s;
  Begin(1, 10);
  size_t attempts = 0;
  for (int failures = 0; failures < 4; ++failures) {
    Refuse(world_.opened.back(), Side::kDecode);
    WakeIfItWaits(world_, *session_, now_, ++attempts);
    ASSERT_FALSE(world_.finished.has_value()) << failures;
    Break(world_.opened.back(), Side::kDecode);
    WakeIfItWaits(world_, *session_, now_, ++attempts);
  }
  ASSERT_TRUE(world_.finished.has_value());
  EXPECT_EQ(world_.finished->code(), absl::StatusCode::kUnavailable);
  EXPECT_THAT(Message(*world_.finished), HasSubstr("gave up after 4 plans"));
}

TEST_F(SessionTest, AnErrorThatAnotherPlanWouldRepeatEndsTheRequest) {
  Begin(1, 10);
  session_->OnEnded(0, Side::kPrefill, Internal("bad arithmetic"), now_);
  ASSERT_TRUE(world_.finished.has_value());
  EXPECT_EQ(world_.finished->code(), absl::StatusCode::kInternal);
  EXPECT_THAT(Message(*world_.finished), HasSubstr("prefill worker p1: bad arithmetic"));
  EXPECT_TRUE(world_.opened[0].decode_cancelled);
}

TEST_F(SessionTest, CallsThatEndTooEarlyCountAsFailures) {
  Begin(1, 10);
  session_->OnEnded(0, Side::kPrefill, absl::OkStatus(), now_);
  ASSERT_EQ(world_.opened.size(), 2u);
  std::vector<FakeChoice> choices = ChoicesOf(world_.opened[1]);
  SendFirst(world_.opened[1], choices);
  session_->OnEnded(1, Side::kDecode, absl::OkStatus(), now_);
  now_ = *world_.wake_at;
  session_->OnWake(now_);
  ASSERT_EQ(world_.opened.size(), 3u);
  Answer(world_.opened[2]);
  EXPECT_EQ(world_.text[0], Expected(0, 10));
}

TEST_F(SessionTest, TheDecodeCallMayEndBeforeTheFirstTokenIsReported) {
  Begin(1, 5);
  std::vector<FakeChoice> choices = ChoicesOf(world_.opened[0]);
  v1::PrefillEvent first;
  *first.mutable_first()->add_tokens() = choices[0].Next();
  while (!choices[0].ended()) SendToken(world_.opened[0], choices[0]);
  session_->OnEnded(0, Side::kDecode, absl::OkStatus(), now_);
  session_->OnPrefillEvent(0, first, now_);
  ASSERT_TRUE(world_.finished.has_value());
  EXPECT_TRUE(world_.finished->ok()) << *world_.finished;
  EXPECT_EQ(world_.text[0], Expected(0, 5));
}

TEST_F(SessionTest, ButNotWithoutItsTokens) {
  Begin(1, 5);
  session_->OnEnded(0, Side::kDecode, absl::OkStatus(), now_);
  EXPECT_EQ(world_.opened.size(), 1u);
  std::vector<FakeChoice> choices = ChoicesOf(world_.opened[0]);
  SendFirst(world_.opened[0], choices);
  ASSERT_EQ(world_.opened.size(), 2u);
  Answer(world_.opened[1]);
  EXPECT_EQ(world_.text[0], Expected(0, 5));
}

TEST_F(SessionTest, AWorkerThatContradictsItselfIsLeft) {
  Begin(1, 10);
  std::vector<FakeChoice> choices = ChoicesOf(world_.opened[0]);
  SendFirst(world_.opened[0], choices);
  v1::TokenOut of_nobody;
  of_nobody.set_choice(7);
  session_->OnDecodeToken(0, of_nobody, now_);
  ASSERT_EQ(world_.opened.size(), 2u);
  Answer(world_.opened[1]);
  EXPECT_EQ(world_.text[0], Expected(0, 10));
}

}  // namespace
}  // namespace penstock
