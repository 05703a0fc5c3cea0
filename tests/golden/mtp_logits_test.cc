#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <vector>

#include "kernels/cpu/isa.h"
#include "kernels/cpu/thread_pool.h"
#include "model/forward/transformer_runner.h"
#include "model/load/load_model.h"
#include "tests/golden/golden_logits.h"

// The layer for multi-token prediction against transformers' modules, put together as DeepSeek-V3's
// paper describes it (make_logits.py).
namespace penstock {
namespace {

// The layer's outputs for a token.
struct Guess {
  std::vector<float> logits, hidden;
};

class GoldenMtpTest : public testing::TestWithParam<std::string> {
 protected:
  void SetUp() override {
    const std::string directory = GoldenDirectory() + "/" + GetParam();
    auto model = LoadModel(ModelIn(directory), {.use_mtp = true});
    ASSERT_TRUE(model.ok()) << model.status();
    model_ = std::make_unique<LoadedModel>(*std::move(model));
    expected_ = ReadExpected(directory);
    ASSERT_EQ(expected_.mtp_logits.size(), expected_.tokens.size() * vocab());
    ASSERT_EQ(expected_.mtp_hidden.size(), expected_.tokens.size() * width());
  }

  size_t vocab() const { return static_cast<size_t>(model_->weights.config.vocab); }
  size_t width() const { return static_cast<size_t>(model_->weights.config.hidden); }

  // Computes the tokens in chunks, with the keys and values of the layer. Returns the hidden state
  // behind each chunk. Each chunk but the first begins with the one before, in the same memory.
  std::vector<std::vector<float>> Fill(TransformerRunner& runner, const PagedKv& kv,
                                       std::span<const uint32_t> table,
                                       const std::vector<size_t>& chunks) const {
    std::vector<std::vector<float>> states;
    std::vector<float> hidden(width()), logits(vocab());
    size_t done = 0;
    for (const size_t chunk : chunks) {
      const SequenceStep step{.tokens = std::span(expected_.tokens).subspan(done, chunk),
                              .position = static_cast<int32_t>(done),
                              .blocks = table,
                              .wants_logits = done % 3 == 0,
                              .hidden = hidden,
                              .fills_mtp = true,
                              .before = done == 0 ? std::span<const float>() : hidden};
      const int64_t rows = step.wants_logits ? 1 : 0;
      const absl::Status status = runner.Step(
          {.sequences = {&step, 1}, .kv = kv, .logits = {logits.data(), {rows, runner.vocab()}}});
      EXPECT_TRUE(status.ok()) << status;
      states.push_back(hidden);
      done += chunk;
    }
    return states;
  }

  // The layer's outputs for the token at `position`.
  Guess GuessAt(TransformerRunner& runner, const PagedKv& kv, std::span<const uint32_t> table,
                size_t position, std::span<const float> before) const {
    Guess guess{.logits = std::vector<float>(vocab()), .hidden = std::vector<float>(width())};
    const SequenceStep step{.tokens = std::span(expected_.tokens).subspan(position, 1),
                            .position = static_cast<int32_t>(position),
                            .blocks = table,
                            .wants_logits = true,
                            .hidden = guess.hidden,
                            .before = before};
    const absl::Status status = runner.mtp()->StepMtp(
        {.sequences = {&step, 1}, .kv = kv, .logits = {guess.logits.data(), {1, runner.vocab()}}});
    EXPECT_TRUE(status.ok()) << status;
    return guess;
  }

  // The layer's outputs for every token; it computes their keys and values itself.
  std::vector<Guess> GuessAll() const {
    TransformerRunner runner(model_->weights, {}, 64);
    const size_t count = expected_.tokens.size();
    const Pages pages(runner.kv_layout(), static_cast<int64_t>(count), 1);
    const auto states = Fill(runner, pages.kv(), pages.table(), std::vector<size_t>(count, 1));
    std::vector<Guess> guesses;
    std::vector<float> before(width());
    for (size_t i = 0; i < count; ++i) {
      guesses.push_back(GuessAt(runner, pages.kv(), pages.table(), i, before));
      before = states[i];
    }
    return guesses;
  }

  static std::vector<std::vector<float>> Logits(const std::vector<Guess>& guesses) {
    std::vector<std::vector<float>> rows;
    for (const Guess& guess : guesses) rows.push_back(guess.logits);
    return rows;
  }

  double LogitsError() const { return Compare(Logits(GuessAll()), expected_.mtp_logits).rms; }

  std::unique_ptr<LoadedModel> model_;
  Expected expected_;
};

TEST_P(GoldenMtpTest, EveryPosition) {
  const ScopedIsa scoped(Isa::kPortable);
  const std::vector<Guess> guesses = GuessAll();
  EXPECT_LE(Compare(Logits(guesses), expected_.mtp_logits).rms, kF32Limit.rms);
  std::vector<std::vector<float>> hidden;
  for (const Guess& guess : guesses) hidden.push_back(guess.hidden);
  EXPECT_LE(Compare(hidden, expected_.mtp_hidden).rms, kF32Limit.rms);
}

TEST_P(GoldenMtpTest, MistakesShow) {
  const ScopedIsa scoped(Isa::kPortable);
  MtpWeights& mtp = *model_->weights.mtp;
  std::swap(mtp.token_norm, mtp.hidden_norm);
  EXPECT_GT(LogitsError(), 10 * kF32Limit.rms);
  std::swap(mtp.token_norm, mtp.hidden_norm);
  std::swap(mtp.norm, model_->weights.final_norm);
  EXPECT_GT(LogitsError(), 10 * kF32Limit.rms);
  std::swap(mtp.norm, model_->weights.final_norm);
  std::swap(model_->weights.layers[1].mlp_norm, model_->weights.layers[2].mlp_norm);
  EXPECT_GT(LogitsError(), 10 * kF32Limit.rms);
}

// Whatever the chunks of a prompt are, the layer's keys and values are those of one token at a
// time.
TEST_P(GoldenMtpTest, ChunksChangeNoBit) {
  ThreadPool threads(2);
  TransformerRunner runner(model_->weights, {.threads = &threads}, 64);
  const size_t count = expected_.tokens.size();
  const std::vector<Guess> guesses = GuessAll();
  const std::vector<float> before = [&] {
    const Pages pages(runner.kv_layout(), static_cast<int64_t>(count), 2);
    return Fill(runner, pages.kv(), pages.table(), std::vector<size_t>(count, 1))[count - 2];
  }();
  for (uint32_t seed = 1; seed <= 5; ++seed) {
    const Pages pages(runner.kv_layout(), static_cast<int64_t>(count), seed);
    Fill(runner, pages.kv(), pages.table(), RandomChunks(count, seed));
    const Guess last = GuessAt(runner, pages.kv(), pages.table(), count - 1, before);
    EXPECT_EQ(last.logits, guesses.back().logits) << seed;
    EXPECT_EQ(last.hidden, guesses.back().hidden) << seed;
  }
}

// A prompt whose tokens have logits is a part for each token. Each takes the hidden state of the
// part before it.
TEST_P(GoldenMtpTest, PartsOfAStepFollowEachOther) {
  TransformerRunner runner(model_->weights, {}, 64);
  const size_t count = expected_.tokens.size();
  const Pages pages(runner.kv_layout(), static_cast<int64_t>(count), 3);
  std::vector<SequenceStep> steps;
  for (size_t i = 0; i < count; ++i) {
    steps.push_back({.tokens = std::span(expected_.tokens).subspan(i, 1),
                     .position = static_cast<int32_t>(i),
                     .blocks = pages.table(),
                     .wants_logits = true,
                     .fills_mtp = true});
  }
  std::vector<float> before(width()), logits(count * vocab());
  steps[count - 2].hidden = before;
  std::vector<std::pair<int32_t, int32_t>> groups;
  ASSERT_TRUE(runner
                  .Step({.sequences = steps,
                         .kv = pages.kv(),
                         .logits = {logits.data(), {std::ssize(steps), runner.vocab()}},
                         .on_layers_done = [&](int32_t first,
                                               int32_t last) { groups.emplace_back(first, last); },
                         .layers_per_group = 2})
                  .ok());
  EXPECT_EQ(groups, (std::vector<std::pair<int32_t, int32_t>>{{0, 2}, {2, 3}}));
  const Guess last = GuessAt(runner, pages.kv(), pages.table(), count - 1, before);
  EXPECT_EQ(last.logits, GuessAll().back().logits);
}

INSTANTIATE_TEST_SUITE_P(Checkpoints, GoldenMtpTest,
                         testing::Values("deepseek_v3_mtp", "glm4_moe_mtp", "gguf_glm4_moe"),
                         [](const auto& tested) { return tested.param; });

TEST(MtpLoadTest, NamesAModelWithoutTheLayer) {
  const auto model = LoadModel(GoldenDirectory() + "/glm4_moe", {.use_mtp = true});
  ASSERT_EQ(model.status().code(), absl::StatusCode::kFailedPrecondition) << model.status();
  EXPECT_NE(model.status().message().find("num_nextn_predict_layers"), std::string::npos);
}

}  // namespace
}  // namespace penstock
