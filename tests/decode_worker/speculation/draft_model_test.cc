// A draft model's guesses, on a model whose KV says of which tokens it is.

#include "decode_worker/speculation/draft_model.h"

#include <gtest/gtest.h>

#include "tests/decode_worker/hash_runner.h"

namespace penstock {
namespace {

class DraftModelTest : public ::testing::Test {
 protected:
  DraftModelTest() { Make(100); }

  void Make(int64_t blocks, int32_t vocab = kHashVocab) {
    model_.reset();
    pool_ = *BlockPool::Create(kHashLayout, blocks);
    model_ = std::make_unique<DraftModel>(
        runner_, *pool_, clock_,
        DraftModel::Options{.step_tokens = 64, .vocab = vocab, .relative_cost = 0.1});
  }

  // A sequence of `size` tokens.
  static std::vector<uint32_t> Text(uint32_t size) {
    std::vector<uint32_t> tokens;
    for (uint32_t i = 0; i < size; ++i) tokens.push_back(i * i % kHashVocab);
    return tokens;
  }

  void CatchUp(DraftContext& context) {
    while (!DraftModel::Ready(context)) {
      ASSERT_TRUE(model_->CatchUp(context, 0, target_).ok());
    }
  }

  std::vector<uint32_t> Guess(DraftContext& context, size_t count) {
    DraftAsk ask{.context = &context, .draws = {count, {.temperature = 0}}};
    EXPECT_TRUE(model_->Guess({&ask, 1}).ok());
    return {context.guess().begin(), context.guess().end()};
  }

  // What the model says behind the context's tokens.
  static std::vector<uint32_t> Right(const DraftContext& context, int count) {
    const std::vector<uint32_t> tokens(context.tokens().begin(), context.tokens().end());
    return HashAnswer(tokens, FirstHashToken(tokens), count);
  }

  ManualClock clock_;
  StepCost target_;
  HashRunner runner_;
  std::unique_ptr<BlockPool> pool_;
  std::unique_ptr<DraftModel> model_;
};

TEST_F(DraftModelTest, GuessesWhatTheModelSays) {
  DraftContext context(Text(200), 200);
  EXPECT_FALSE(DraftModel::Ready(context));
  CatchUp(context);
  EXPECT_LE(runner_.most_tokens, 64);
  EXPECT_EQ(Guess(context, 5), Right(context, 5));
}

// The runner draws only where every token that it may draw is one of the target's.
TEST_F(DraftModelTest, GuessesNoTokenThatTheTargetLacks) {
  runner_.draws = true;
  DraftContext context(Text(40), 40);
  CatchUp(context);
  EXPECT_EQ(Guess(context, 5), Right(context, 5));
  EXPECT_EQ(runner_.drawn, 5);
  EXPECT_EQ(runner_.given, 0);
  context.Release();
  Make(100, /*vocab=*/3);
  DraftContext other(Text(3), 3);
  for (const uint32_t token : Guess(other, 5)) EXPECT_LT(token, 3u);
  EXPECT_EQ(runner_.drawn, 5);
  EXPECT_EQ(runner_.given, 5);
}

// KV of wrong guesses is overwritten, and that of right ones is kept: each number of right tokens
// in guesses of each length, and plain steps between.
TEST_F(DraftModelTest, GoesOnFromWhatWasAccepted) {
  DraftContext context(Text(40), 40);
  CatchUp(context);
  for (size_t count = 1; count <= 4; ++count) {
    for (size_t right = 0; right <= count; ++right) {
      const std::vector<uint32_t> guess = Guess(context, count);
      ASSERT_EQ(guess, Right(context, static_cast<int>(count))) << count << ' ' << right;
      for (size_t i = 0; i < right; ++i) context.Observe(guess[i]);
      context.Observe(right < count ? (guess[right] + 1) % kHashVocab : 9);
      EXPECT_LE(context.pending(), 2u);
      if (right == 1) context.Observe(17);
      model_->Count(context);
    }
  }
  EXPECT_GT(model_->acceptance(), 0.5);
  EXPECT_LT(model_->acceptance(), 0.9);
}

// A step may check fewer guesses than there are.
TEST_F(DraftModelTest, AGuessMayBeRightWithoutACheck) {
  DraftContext context(Text(40), 40);
  CatchUp(context);
  for (size_t taken = 1; taken <= 4; ++taken) {
    const std::vector<uint32_t> guess = Guess(context, 4);
    ASSERT_EQ(guess, Right(context, 4)) << taken;
    for (size_t i = 0; i < taken; ++i) context.Observe(guess[i]);
  }
}

TEST_F(DraftModelTest, SequencesAreGuessedTogether) {
  DraftContext first(Text(30), 30), second(Text(3), 3), third(Text(50), 50);
  CatchUp(first);
  CatchUp(third);
  std::vector<DraftAsk> asks = {{.context = &first, .draws = {1, {.temperature = 0}}},
                                {.context = &second, .draws = {4, {.temperature = 0}}},
                                {.context = &third, .draws = {2, {.temperature = 0}}}};
  ASSERT_TRUE(model_->Guess(asks).ok());
  for (const DraftAsk& ask : asks) {
    const auto guess = ask.context->guess();
    EXPECT_EQ(std::vector<uint32_t>(guess.begin(), guess.end()),
              Right(*ask.context, static_cast<int>(ask.draws.size())));
  }
}

TEST_F(DraftModelTest, ChoicesShareTheirPrompt) {
  DraftContext first(Text(100), 100), second(Text(100), 100);
  first.Observe(3);
  second.Observe(5);
  CatchUp(first);
  const int64_t used = pool_->blocks_used();
  model_->SharePrompt(second, first);
  EXPECT_EQ(second.computed() % 16, 0u);
  EXPECT_GE(second.computed(), 80u);
  EXPECT_EQ(pool_->blocks_used(), used);
  CatchUp(second);
  EXPECT_EQ(Guess(second, 3), Right(second, 3));
  EXPECT_EQ(Guess(first, 3), Right(first, 3));
}

TEST_F(DraftModelTest, AFullPoolGivesNoGuess) {
  Make(4);
  DraftContext context(Text(60), 60), other(Text(12), 12);
  EXPECT_FALSE(model_->HasRoom(context));
  CatchUp(context);
  EXPECT_EQ(Guess(context, 3), Right(context, 3));
  EXPECT_TRUE(Guess(other, 3).empty());
  EXPECT_EQ(other.computed(), 0u);
  for (uint32_t i = 0; i < 6; ++i) context.Observe(i);
  EXPECT_TRUE(Guess(context, 3).empty());  // it has lost its KV for nothing, and takes no block
  EXPECT_EQ(pool_->blocks_used(), 0);
  EXPECT_EQ(Guess(other, 3), Right(other, 3));
}

TEST_F(DraftModelTest, GuessesStayWithinItsContextAndVocabulary) {
  DraftContext context(Text(4090), 4090);
  EXPECT_EQ(model_->Longest(context), 6);
  context.Observe(kHashVocab);
  EXPECT_EQ(model_->Longest(context), 0);
}

// A low rate does not keep guesses away for ever.
TEST_F(DraftModelTest, ABadModelIsTriedAgainLater) {
  DraftContext context(Text(5), 5);
  for (int i = 0; i < 100; ++i) {
    const std::vector<uint32_t> guess = Guess(context, 1);
    context.Observe((guess[0] + 1) % kHashVocab);
    model_->Count(context);
  }
  EXPECT_LT(model_->acceptance(), 0.1);
  EXPECT_LT(context.acceptance(model_->acceptance()), 0.1);
  for (int i = 0; i < 10'000; ++i) model_->SkipGuesses();
  EXPECT_GT(model_->acceptance(), 0.5);
}

}  // namespace
}  // namespace penstock
