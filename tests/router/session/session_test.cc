// Sessions whose workers do as they are asked.

#include "router/session/session.h"

#include <gtest/gtest.h>

#include "tests/router/session/session_fixture.h"

namespace penstock {
namespace {

TEST_F(SessionTest, AnswersEveryTokenOnceAndFinishes) {
  Begin(1, 20);
  ASSERT_EQ(world_.opened.size(), 1u);
  EXPECT_EQ(world_.opened[0].prefill.decode_endpoint(), "d:1");
  EXPECT_EQ(world_.opened[0].prefill.key().nonce(), world_.opened[0].decode.key().nonce());
  Answer(world_.opened[0]);
  ASSERT_TRUE(world_.finished.has_value());
  EXPECT_TRUE(world_.finished->ok()) << *world_.finished;
  EXPECT_EQ(world_.text[0], Expected(0, 20));
  ASSERT_EQ(world_.endings.size(), 1u);
  EXPECT_EQ(world_.endings[0].finish_reason(), v1::LENGTH);
  EXPECT_EQ(world_.endings[0].usage().prompt_tokens(), 5u);
  EXPECT_EQ(world_.endings[0].usage().completion_tokens(), 20u);
  EXPECT_EQ(world_.endings[0].usage().recomputed_tokens(), 0u);
  EXPECT_EQ(world_.reserved, 0);
}

TEST_F(SessionTest, ThePrefillWorkerIsToldWhereMoreOfThePrefixIs) {
  world_.peer.emplace().set_endpoint("p:9");
  world_.peer->set_blocks(3);
  Begin(1, 20);
  EXPECT_EQ(world_.opened[0].prefill.peer().endpoint(), "p:9");
  EXPECT_EQ(world_.opened[0].prefill.peer().blocks(), 3u);
  world_.peer.reset();
  Break(world_.opened[0], Side::kPrefill);
  ASSERT_EQ(world_.opened.size(), 2u);
  EXPECT_FALSE(world_.opened[1].prefill.has_peer()) << "the next plan has none";
}

TEST_F(SessionTest, BothWorkersAreToldWhoseQuotaPinsCountAgainst) {
  Begin(1, 20);
  EXPECT_EQ(world_.opened[0].prefill.tenant_id(), "t");
  EXPECT_EQ(world_.opened[0].decode.tenant_id(), "t");
}

TEST_F(SessionTest, KeepsOrderWhenDecodeIsFasterThanThePrefillReport) {
  Begin(1, 10);
  std::vector<FakeChoice> choices = ChoicesOf(world_.opened[0]);
  v1::PrefillEvent first;
  *first.mutable_first()->add_tokens() = choices[0].Next();
  while (!choices[0].ended()) SendToken(world_.opened[0], choices[0]);
  EXPECT_EQ(world_.text[0], "");
  session_->OnPrefillEvent(0, first, now_);
  EXPECT_EQ(world_.text[0], Expected(0, 10));
  EXPECT_TRUE(world_.finished->ok());
}

// The worker dies within a step's tokens: they wait for the next one.
TEST_F(SessionTest, TheTokensOfAStepLeaveInOneChunk) {
  Begin(1, 20);
  std::vector<FakeChoice> choices = ChoicesOf(world_.opened[0]);
  SendFirst(world_.opened[0], choices);
  for (const uint32_t more : {2, 1}) {
    v1::TokenOut token = choices[0].Next();
    token.set_more_in_step(more);
    session_->OnDecodeToken(0, token, now_);
    EXPECT_EQ(world_.text[0], Expected(0, 1));
  }
  v1::TokenOut last = choices[0].Next();
  last.set_rejected_guesses(3);
  session_->OnDecodeToken(0, last, now_);
  EXPECT_EQ(world_.text[0], Expected(0, 4));
  v1::TokenOut next = choices[0].Next();
  next.set_more_in_step(1);
  session_->OnDecodeToken(0, next, now_);
  Break(world_.opened[0], Side::kDecode);
  ASSERT_EQ(world_.opened.size(), 2u);
  EXPECT_EQ(world_.text[0], Expected(0, 4));
  Answer(world_.opened[1]);
  EXPECT_EQ(world_.text[0], Expected(0, 20));
  ASSERT_EQ(world_.endings.size(), 1u);
  EXPECT_EQ(world_.endings[0].usage().completion_tokens(), 20u);
  EXPECT_EQ(world_.endings[0].usage().accepted_draft_tokens(), 3u);
  EXPECT_EQ(world_.endings[0].usage().rejected_draft_tokens(), 3u);
}

TEST_F(SessionTest, AStopStringCutsTheAnswerAndCancelsTheAttempt) {
  const std::string whole = Expected(0, 40);
  const std::string stop = whole.substr(10, 6);
  Begin(1, 40, {stop});
  Answer(world_.opened[0]);
  EXPECT_TRUE(world_.finished->ok()) << *world_.finished;
  EXPECT_EQ(world_.text[0], whole.substr(0, whole.find(stop)));
  EXPECT_EQ(world_.endings[0].finish_reason(), v1::STOP);
  EXPECT_EQ(world_.endings[0].matched_stop_string(), stop);
  EXPECT_EQ(world_.endings[0].usage().completion_tokens(), whole.find(stop) + 6);
  EXPECT_TRUE(world_.opened[0].decode_cancelled);
}

TEST_F(SessionTest, WithSeveralChoicesAStopEndsOnlyItsOwn) {
  const std::string stop = Expected(1, 40).substr(5, 6);
  Begin(2, 40, {stop});
  Answer(world_.opened[0]);
  EXPECT_TRUE(world_.finished->ok());
  EXPECT_EQ(world_.text[0], Expected(0, 40));
  EXPECT_LE(world_.text[1].size(), 5u);
}

TEST_F(SessionTest, AClientThatLeavesCancelsBothCalls) {
  Begin(1, 10);
  session_->OnClientGone(Cancelled("gone"));
  EXPECT_TRUE(world_.opened[0].prefill_cancelled);
  EXPECT_TRUE(world_.opened[0].decode_cancelled);
  EXPECT_EQ(world_.reserved, 0);
  EXPECT_EQ(world_.finished->code(), absl::StatusCode::kCancelled);
  Break(world_.opened[0], Side::kDecode);  // comes too late to matter
  EXPECT_EQ(world_.opened.size(), 1u);
}

TEST_F(SessionTest, WithTimingTheLastFinalWaitsForTheHandoffsFigures) {
  Begin(1, 5, {}, /*timing=*/true);
  Answer(world_.opened[0]);
  EXPECT_FALSE(world_.finished.has_value());
  v1::PrefillEvent event;
  event.mutable_handoff()->set_kv_bytes(4096);
  event.mutable_handoff()->set_transport("tcp");
  session_->OnPrefillEvent(0, event, now_);
  session_->OnEnded(0, Side::kPrefill, absl::OkStatus(), now_);
  ASSERT_TRUE(world_.finished.has_value());
  EXPECT_EQ(world_.endings[0].timing().kv_bytes_moved(), 4096u);
  EXPECT_EQ(world_.endings[0].timing().transport(), "tcp");
  EXPECT_EQ(world_.endings[0].timing().decode_worker(), "d1");
}

TEST_F(SessionTest, BytesThatTokensReadAreAddedUp) {
  Begin(1, 5, {}, /*timing=*/true);
  std::vector<FakeChoice> choices = ChoicesOf(world_.opened[0]);
  SendFirst(world_.opened[0], choices);
  uint64_t read = 0;
  while (!choices[0].ended()) {
    v1::TokenOut token = choices[0].Next();
    token.set_kv_bytes_read(1000 + read);
    read += token.kv_bytes_read();
    session_->OnDecodeToken(0, token, now_);
  }
  v1::PrefillEvent event;
  event.mutable_handoff()->set_kv_bytes(4096);
  session_->OnPrefillEvent(0, event, now_);
  session_->OnEnded(0, Side::kPrefill, absl::OkStatus(), now_);
  ASSERT_TRUE(world_.finished.has_value());
  EXPECT_EQ(world_.endings[0].timing().kv_bytes_read(), read);
  EXPECT_GT(read, 1000u);
}

TEST_F(SessionTest, AndDoesNotWaitForLong) {
  Begin(1, 5, {}, /*timing=*/true);
  Answer(world_.opened[0]);
  ASSERT_TRUE(world_.wake_at.has_value());
  now_ = *world_.wake_at;
  session_->OnWake(now_);
  EXPECT_TRUE(world_.finished.has_value());
}

TEST_F(SessionTest, ADecodeWorkerMayComputeThePromptItself) {
  world_.local_prefill = true;
  Begin(2, 12, {}, /*timing=*/true);
  ASSERT_EQ(world_.opened.size(), 1u);
  const Opened& only = world_.opened[0];
  EXPECT_TRUE(only.decode.prefill());
  EXPECT_EQ(only.prefill.tokens_size(), 0) << "nobody else was asked";
  std::vector<FakeChoice> choices = ChoicesOf(only);
  v1::DecodeEvent event;
  for (FakeChoice& choice : choices) *event.mutable_first()->add_tokens() = choice.Next();
  event.mutable_first()->set_cached_tokens(3);
  session_->OnDecodeEvent(only.attempt, event, now_);
  for (FakeChoice& choice : choices) {
    while (!choice.ended()) SendToken(only, choice);
  }
  ASSERT_TRUE(world_.finished.has_value()) << "no figures of a handoff are to come";
  EXPECT_EQ(world_.text[0], Expected(0, 12));
  EXPECT_EQ(world_.text[1], Expected(1, 12));
  EXPECT_EQ(world_.endings[1].usage().cached_tokens(), 3u);
  EXPECT_EQ(world_.endings[1].timing().prefill_worker(), "");
  EXPECT_EQ(world_.reserved, 0);
}

TEST_F(SessionTest, WhenItDoesNotAPrefillWorkerDoes) {
  world_.local_prefill = true;
  Begin(1, 12);
  session_->OnEnded(0, Side::kDecode, FailedPrecondition("too much is missing"), now_);
  ASSERT_EQ(world_.opened.size(), 2u);
  EXPECT_EQ(world_.failures_seen, (WorkerFailures{{{"d:1", 1}, 2}}));
  EXPECT_FALSE(world_.opened[1].decode.prefill());
  Answer(world_.opened[1]);
  EXPECT_EQ(world_.text[0], Expected(0, 12));
  EXPECT_EQ(world_.reserved, 0);
}

}  // namespace
}  // namespace penstock
