// Answers that begin with the prompt, and the log-probabilities of its tokens.

#include <gtest/gtest.h>

#include "tests/router/session/session_fixture.h"

namespace penstock {
namespace {

constexpr uint32_t kScored = 4;  // all tokens of the prompt but the first

class SessionEchoTest : public SessionTest {
 protected:
  void BeginEcho(bool logprobs, uint32_t choices = 1) {
    echo_ = true;
    logprobs_ = logprobs;
    Begin(choices, 10);
  }

  // The token at position p has the log-probability -p.
  void SendScores(int attempt, uint32_t first, uint32_t count) {
    v1::PrefillEvent event;
    event.mutable_scores()->set_first_position(first);
    for (uint32_t i = 0; i < count; ++i) {
      event.mutable_scores()->add_tokens()->set_logprob(-static_cast<float>(first + i));
    }
    session_->OnPrefillEvent(attempt, event, now_);
  }

  void ExpectEchoWithLogprobs(uint32_t choice) {
    EXPECT_EQ(world_.text[choice], "hello" + Expected(choice, 10));
    const std::vector<v1::TokenLogprob>& logprobs = world_.logprobs[choice];
    ASSERT_EQ(logprobs.size(), kSessionPrompt.size() + 10);
    EXPECT_FALSE(logprobs[0].has_logprob());
    EXPECT_EQ(logprobs[0].token_bytes(), "h");
    for (uint32_t i = 1; i <= kScored; ++i) {
      EXPECT_EQ(logprobs[i].token_id(), kSessionPrompt[i]);
      EXPECT_EQ(logprobs[i].logprob(), -static_cast<float>(i));
    }
    EXPECT_TRUE(logprobs[5].has_logprob());
  }
};

TEST_F(SessionEchoTest, TextAloneCostsTheWorkersNothing) {
  world_.peer.emplace().set_endpoint("p:9");
  BeginEcho(/*logprobs=*/false);
  EXPECT_FALSE(world_.opened[0].prefill.has_scoring());
  EXPECT_TRUE(world_.opened[0].prefill.has_peer());
  EXPECT_TRUE(world_.needs[0].may_prefill_locally);
  Answer(world_.opened[0]);
  EXPECT_EQ(world_.text[0], "hello" + Expected(0, 10));
  EXPECT_TRUE(world_.logprobs[0].empty());
}

TEST_F(SessionEchoTest, LogprobsNeedThePrefillWorkerToComputeTheWholePrompt) {
  world_.peer.emplace().set_endpoint("p:9");
  BeginEcho(/*logprobs=*/true, 2);
  EXPECT_TRUE(world_.opened[0].prefill.has_scoring());
  EXPECT_FALSE(world_.opened[0].prefill.has_peer());
  EXPECT_FALSE(world_.needs[0].may_prefill_locally);
  EXPECT_FALSE(world_.needs[0].may_skip_prefill);
  SendScores(0, 1, 3);
  SendScores(0, 4, 1);
  Answer(world_.opened[0]);
  ASSERT_TRUE(world_.finished.has_value());
  EXPECT_TRUE(world_.finished->ok()) << *world_.finished;
  ExpectEchoWithLogprobs(0);
  ExpectEchoWithLogprobs(1);
}

TEST_F(SessionEchoTest, ARetryBeforeTheFirstTokenScoresAgain) {
  BeginEcho(/*logprobs=*/true);
  SendScores(0, 1, 3);
  Break(world_.opened[0], Side::kPrefill);
  ASSERT_EQ(world_.opened.size(), 2u);
  EXPECT_TRUE(world_.opened[1].prefill.has_scoring());
  SendScores(1, 1, 4);
  Answer(world_.opened[1]);
  ExpectEchoWithLogprobs(0);
}

TEST_F(SessionEchoTest, ARetryBehindTheFirstTokenDoesNot) {
  BeginEcho(/*logprobs=*/true);
  SendScores(0, 1, 4);
  std::vector<FakeChoice> choices = ChoicesOf(world_.opened[0]);
  SendFirst(world_.opened[0], choices);
  Break(world_.opened[0], Side::kDecode);
  ASSERT_EQ(world_.opened.size(), 2u);
  EXPECT_FALSE(world_.opened[1].prefill.has_scoring());
  EXPECT_TRUE(world_.needs[1].may_skip_prefill);
  Answer(world_.opened[1]);
  ExpectEchoWithLogprobs(0);
}

TEST_F(SessionEchoTest, ScoresThatAreMissingRepeatedOrTooManyEndTheAttempt) {
  BeginEcho(/*logprobs=*/true);
  SendScores(0, 2, 1);  // a gap
  ASSERT_EQ(world_.opened.size(), 2u);
  SendScores(1, 1, 2);
  SendScores(1, 1, 2);  // again
  ASSERT_TRUE(world_.wake_at.has_value());
  session_->OnWake(now_ = *world_.wake_at);
  ASSERT_EQ(world_.opened.size(), 3u);
  SendScores(2, 1, 5);  // one more than there are
  session_->OnWake(now_ = *world_.wake_at);
  ASSERT_EQ(world_.opened.size(), 4u);
  SendScores(3, 1, 3);
  std::vector<FakeChoice> choices = ChoicesOf(world_.opened[3]);
  SendFirst(world_.opened[3], choices);  // and the last is missing
  ASSERT_TRUE(world_.finished.has_value());
  EXPECT_TRUE(absl::IsUnavailable(*world_.finished)) << *world_.finished;
  EXPECT_EQ(world_.text[0], "");
}

TEST_F(SessionEchoTest, PromptLogprobsComeBesideTheAnswer) {
  prompt_logprobs_ = 1;
  Begin(1, 10);
  EXPECT_EQ(world_.opened[0].prefill.scoring().top_logprobs(), 1u);
  EXPECT_FALSE(world_.needs[0].may_prefill_locally);
  SendScores(0, 1, 4);
  Answer(world_.opened[0]);
  EXPECT_EQ(world_.text[0], Expected(0, 10));
  EXPECT_TRUE(world_.logprobs[0].empty());
  ASSERT_EQ(world_.prompt.size(), kSessionPrompt.size());
  EXPECT_FALSE(world_.prompt[0].has_logprob());
  EXPECT_EQ(world_.prompt[3].logprob(), -3.0f);
  EXPECT_EQ(world_.prompt[3].token_id(), kSessionPrompt[3]);
}

TEST_F(SessionEchoTest, WithoutAnAnswerThePromptIsAll) {
  prompt_only_ = true;
  BeginEcho(/*logprobs=*/true);
  SendScores(0, 1, 4);
  std::vector<FakeChoice> choices = ChoicesOf(world_.opened[0]);
  SendFirst(world_.opened[0], choices);
  ASSERT_TRUE(world_.finished.has_value());
  EXPECT_TRUE(world_.finished->ok()) << *world_.finished;
  EXPECT_EQ(world_.text[0], "hello");
  EXPECT_EQ(world_.logprobs[0].size(), kSessionPrompt.size());
  ASSERT_EQ(world_.endings.size(), 1u);
  EXPECT_EQ(world_.endings[0].finish_reason(), v1::LENGTH);
  EXPECT_EQ(world_.endings[0].usage().completion_tokens(), 0u);
}

class SessionEmbeddingTest : public SessionTest {
 protected:
  void BeginEmbedding() {
    world_.peer.emplace().set_endpoint("p:9");
    embedding_ = EmbeddingSpec{.hidden = 3, .dimensions = 2, .normalise = true};
    prompt_only_ = true;
    Begin(1, 1);
  }
  void SendHiddenState(int attempt, std::vector<float> values, bool mean = false) {
    v1::PrefillEvent event;
    event.mutable_hidden_state()->set_mean(mean);
    event.mutable_hidden_state()->mutable_values()->Assign(values.begin(), values.end());
    session_->OnPrefillEvent(attempt, event, now_);
  }
};

TEST_F(SessionEmbeddingTest, IsTheAnswer) {
  BeginEmbedding();
  EXPECT_TRUE(world_.opened[0].prefill.hidden_state());
  EXPECT_TRUE(world_.opened[0].prefill.has_peer());  // a cached prefix serves as well
  EXPECT_FALSE(world_.needs[0].may_prefill_locally);
  EXPECT_FALSE(world_.needs[0].may_skip_prefill);
  SendHiddenState(0, {3, 4, 9});
  Answer(world_.opened[0]);
  ASSERT_TRUE(world_.finished.has_value());
  EXPECT_TRUE(world_.finished->ok()) << *world_.finished;
  ASSERT_EQ(world_.endings.size(), 1u);
  const v1::Final& ending = world_.endings[0];
  ASSERT_EQ(ending.embedding_size(), 2);
  EXPECT_FLOAT_EQ(ending.embedding(0), 0.6f);
  EXPECT_FLOAT_EQ(ending.embedding(1), 0.8f);
  EXPECT_EQ(ending.usage().completion_tokens(), 0u);
  EXPECT_EQ(world_.text[0], "");
}

// An older worker sends the last token's state in its place.
TEST_F(SessionEmbeddingTest, AMeanIsTakenFromAWorkerThatMakesOne) {
  world_.peer.emplace().set_endpoint("p:9");
  embedding_ = EmbeddingSpec{.hidden = 3, .dimensions = 2, .pooling = Pooling::kMean};
  prompt_only_ = true;
  Begin(1, 1);
  EXPECT_TRUE(world_.opened[0].prefill.hidden_mean());
  EXPECT_FALSE(world_.opened[0].prefill.has_peer());
  SendHiddenState(0, {9, 9, 9});
  EXPECT_TRUE(world_.endings.empty());
  ASSERT_EQ(world_.opened.size(), 2u);
  SendHiddenState(1, {4, 3, 9}, /*mean=*/true);
  Answer(world_.opened[1]);
  ASSERT_EQ(world_.endings.size(), 1u);
  EXPECT_FLOAT_EQ(world_.endings[0].embedding(0), 4);
}

TEST_F(SessionEmbeddingTest, ARetryGetsItAgain) {
  BeginEmbedding();
  SendHiddenState(0, {9, 9, 9});
  Break(world_.opened[0], Side::kPrefill);
  ASSERT_EQ(world_.opened.size(), 2u);
  EXPECT_TRUE(world_.opened[1].prefill.hidden_state());
  SendHiddenState(1, {4, 3, 9});
  Answer(world_.opened[1]);
  ASSERT_EQ(world_.endings.size(), 1u);
  EXPECT_FLOAT_EQ(world_.endings[0].embedding(0), 0.8f);
}

TEST_F(SessionEmbeddingTest, AWorkerThatSendsNoneOrAnotherIsLeft) {
  BeginEmbedding();
  Answer(world_.opened[0]);
  EXPECT_TRUE(world_.endings.empty());
  ASSERT_EQ(world_.opened.size(), 2u);
  SendHiddenState(1, {1, 2});
  EXPECT_TRUE(world_.endings.empty());
  EXPECT_FALSE(world_.finished.has_value() && world_.finished->ok());
}

}  // namespace
}  // namespace penstock
