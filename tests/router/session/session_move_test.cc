// Sessions that move from a draining decode worker to others.

#include <gtest/gtest.h>

#include "tests/router/session/session_fixture.h"

namespace penstock {
namespace {

using namespace std::chrono_literals;

class SessionMoveTest : public SessionTest {
 protected:
  // A request whose choices have `tokens` tokens each, on a decode worker that is now draining.
  std::vector<FakeChoice> BeginAndLeave(uint32_t count, int tokens) {
    Begin(count, 30);
    std::vector<FakeChoice> choices = ChoicesOf(world_.opened[0]);
    SendFirst(world_.opened[0], choices);
    Commit(world_.opened[0]);
    for (FakeChoice& choice : choices) {
      for (int i = 1; i < tokens; ++i) SendToken(world_.opened[0], choice);
    }
    session_->OnDraining(0, now_);
    return choices;
  }

  // The target continues after the last token of the MoveRequest.
  void AnswerMoved(const Opened& attempt) {
    std::vector<FakeChoice> choices = ChoicesOf(attempt);
    EXPECT_EQ(choices[0].Next().token(), attempt.move->last_token());
    while (!choices[0].ended() && !world_.finished) SendToken(attempt, choices[0]);
  }
};

TEST_F(SessionMoveTest, ChoicesMoveOneByOneWithoutPrefill) {
  std::vector<FakeChoice> choices = BeginAndLeave(2, 11);
  ASSERT_EQ(world_.opened.size(), 2u) << "one at a time";
  const Opened& first = world_.opened[1];
  EXPECT_EQ(first.decode.tokens_size(), 5 + 10) << "the last token's KV is still to come";
  EXPECT_EQ(first.decode.sampling().first_choice(), 0u);
  EXPECT_EQ(first.decode.sampling().choices(), 1u);
  EXPECT_EQ(world_.movers_from, "d1");
  EXPECT_FALSE(first.move.has_value()) << "nothing stands still before the target has room";
  SendToken(world_.opened[0], choices[0]);
  Admit(first);
  ASSERT_TRUE(first.move.has_value());
  EXPECT_EQ(first.move->source().nonce(), world_.opened[0].decode.key().nonce());
  EXPECT_EQ(first.move->key().nonce(), first.decode.key().nonce());
  EXPECT_EQ(first.move->tokens_size(), 15);
  EXPECT_EQ(first.move->target_endpoint(), "d:2");
  Commit(first);
  EXPECT_FALSE(world_.opened[0].decode_cancelled) << "the other choice is there";
  EXPECT_FALSE(first.prefill_cancelled) << "and this one stands still there";
  ASSERT_EQ(world_.opened.size(), 3u);
  const Opened& second = world_.opened[2];
  EXPECT_EQ(second.decode.sampling().first_choice(), 1u);
  AnswerMoved(first);
  Admit(second);
  Commit(second);
  EXPECT_TRUE(world_.opened[0].decode_cancelled);
  EXPECT_TRUE(first.prefill_cancelled);
  EXPECT_TRUE(second.prefill_cancelled);
  AnswerMoved(second);
  ASSERT_TRUE(world_.finished.has_value());
  EXPECT_TRUE(world_.finished->ok()) << *world_.finished;
  EXPECT_EQ(world_.text[0], Expected(0, 30));
  EXPECT_EQ(world_.text[1], Expected(1, 30));
  EXPECT_EQ(world_.endings[1].usage().recomputed_tokens(), 0u);
  EXPECT_EQ(session_->timing().migrations().size(), 2u);
  EXPECT_EQ(world_.reserved, 0);
}

TEST_F(SessionMoveTest, WhenATargetFailsTheSourceGoesOn) {
  std::vector<FakeChoice> choices = BeginAndLeave(1, 5);
  for (size_t attempt = 1; attempt <= 3; ++attempt) {
    ASSERT_EQ(world_.opened.size(), attempt + 1);
    Admit(world_.opened[attempt]);
    Break(world_.opened[attempt], attempt == 2 ? Side::kPrefill : Side::kDecode);
    EXPECT_TRUE(attempt == 2 ? world_.opened[attempt].decode_cancelled
                             : world_.opened[attempt].prefill_cancelled)
        << "what stood still goes on";
    now_ += 1s;
    session_->OnWake(now_);
  }
  EXPECT_EQ(world_.opened.size(), 4u) << "three times is enough";
  EXPECT_EQ(world_.failures_seen, (WorkerFailures{{{"d:2", 1}, 2}}));
  while (!choices[0].ended()) SendToken(world_.opened[0], choices[0]);
  EXPECT_TRUE(world_.finished->ok());
  EXPECT_EQ(world_.text[0], Expected(0, 30));
  EXPECT_TRUE(session_->timing().migrations().empty());
  EXPECT_EQ(world_.reserved, 0);
}

TEST_F(SessionMoveTest, WhenTheSourceDiesOnlyWhatHasNotMovedIsComputedAgain) {
  std::vector<FakeChoice> choices = BeginAndLeave(2, 5);
  Admit(world_.opened[1]);
  Commit(world_.opened[1]);
  ASSERT_EQ(world_.opened.size(), 3u);
  Admit(world_.opened[2]);
  SendToken(world_.opened[0], choices[1]);
  Break(world_.opened[0], Side::kDecode);
  EXPECT_TRUE(world_.opened[2].decode_cancelled);
  ASSERT_EQ(world_.opened.size(), 4u);
  const Opened& replanned = world_.opened[3];
  EXPECT_EQ(replanned.prefill.tokens_size(), 5 + 6);
  EXPECT_EQ(replanned.prefill.sampling().first_choice(), 1u);
  EXPECT_EQ(replanned.prefill.sampling().choices(), 1u);
  Commit(world_.opened[2]);  // comes too late to matter
  Answer(replanned);
  AnswerMoved(world_.opened[1]);
  ASSERT_TRUE(world_.finished.has_value());
  EXPECT_EQ(world_.text[0], Expected(0, 30));
  EXPECT_EQ(world_.text[1], Expected(1, 30));
  EXPECT_EQ(world_.reserved, 0);
}

TEST_F(SessionMoveTest, WhatEndsWhileItMovesStays) {
  std::vector<FakeChoice> choices = BeginAndLeave(2, 5);
  Admit(world_.opened[1]);
  while (!choices[0].ended()) SendToken(world_.opened[0], choices[0]);
  EXPECT_TRUE(world_.opened[1].decode_cancelled);
  EXPECT_TRUE(world_.opened[1].prefill_cancelled);
  ASSERT_EQ(world_.opened.size(), 3u) << "the other choice's turn";
  EXPECT_EQ(world_.opened[2].decode.sampling().first_choice(), 1u);
  Commit(world_.opened[1]);  // comes too late to matter
  while (!choices[1].ended()) SendToken(world_.opened[0], choices[1]);
  ASSERT_TRUE(world_.finished.has_value());
  EXPECT_EQ(world_.text[1], Expected(1, 30));
  EXPECT_EQ(world_.reserved, 0);
}

TEST_F(SessionMoveTest, AMoveWaitsForATarget) {
  Begin(1, 30);
  std::vector<FakeChoice> choices = ChoicesOf(world_.opened[0]);
  session_->OnDraining(0, now_);
  SendFirst(world_.opened[0], choices);
  EXPECT_EQ(world_.opened.size(), 1u) << "its KV is still on the way";
  world_.placeable = Unavailable("nobody");
  Commit(world_.opened[0]);
  EXPECT_EQ(world_.opened.size(), 1u);
  EXPECT_TRUE(session_->waits_for_worker());
  for (int i = 0; i < 4; ++i) SendToken(world_.opened[0], choices[0]);
  world_.placeable = absl::OkStatus();
  session_->OnWake(now_);
  ASSERT_EQ(world_.opened.size(), 2u);
  EXPECT_EQ(world_.opened[1].decode.tokens_size(), 5 + 4) << "what is known by now";
  Admit(world_.opened[1]);
  Commit(world_.opened[1]);
  AnswerMoved(world_.opened[1]);
  EXPECT_EQ(world_.text[0], Expected(0, 30));
  EXPECT_TRUE(world_.finished->ok());
}

}  // namespace
}  // namespace penstock
