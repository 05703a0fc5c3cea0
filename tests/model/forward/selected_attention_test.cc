// The forward pass over a sequence whose later tokens attend to pages that they select: against a
// plain forward pass in double that selects by itself, and against itself in other batches.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <numeric>
#include <random>

#include "kernels/cpu/isa.h"
#include "model/forward/transformer_runner.h"
#include "tests/model/forward/transformer_reference.h"

namespace penstock {
namespace {

using ::testing::HasSubstr;

constexpr size_t kPrompt = 150, kMore = 25;
constexpr int32_t kPages = 5, kPageTokens = 8;

const ModelConfig kConfig{.layers = 4,
                          .hidden = 48,
                          .intermediate = 64,
                          .heads = 4,
                          .kv_heads = 2,
                          .head_dim = 16,
                          .vocab = 101,
                          .max_position = 400};

using Logits = std::vector<std::vector<float>>;

class SelectedAttentionTest : public ::testing::TestWithParam<Isa> {
 protected:
  SelectedAttentionTest() : serials_(80) {
    std::mt19937_64 random(5);
    for (uint32_t& token : tokens_) token = static_cast<uint32_t>(random() % kConfig.vocab);
    KvLayout layout = runner_.kv_layout();
    layout.block_tokens = kPageTokens;
    memory_ = Buffer(80 * layout.BlockStride());
    kv_ = {.arena = memory_.as<std::byte>(),
           .blocks = 80,
           .layout = layout,
           .serials = serials_.data()};
    table_.resize(40);
    std::iota(table_.begin(), table_.end(), 20u);
    Renew();
  }

  // As if the blocks were taken for another sequence.
  void Renew() {
    for (std::atomic<uint64_t>& serial : serials_) serial = ++last_serial_;
  }

  // The sequence's tokens [first, last).
  SequenceStep PartOf(size_t first, size_t last, int32_t pages = kPages) const {
    return {.tokens = std::span(tokens_).subspan(first, last - first),
            .position = static_cast<int32_t>(first),
            .blocks = table_,
            .selection = {.pages = pages,
                          .from = static_cast<int32_t>(kPrompt),
                          .checked = static_cast<int32_t>(last)},
            .wants_logits = true};
  }

  Logits Step(std::vector<SequenceStep> sequences) {
    std::vector<float> logits(sequences.size() * kConfig.vocab);
    const auto rows = static_cast<int64_t>(sequences.size());
    const absl::Status status = runner_.Step(
        {.sequences = sequences, .kv = kv_, .logits = {logits.data(), {rows, kConfig.vocab}}});
    EXPECT_TRUE(status.ok()) << Message(status);
    Logits split;
    for (size_t i = 0; i < sequences.size(); ++i) {
      const auto from = logits.begin() + static_cast<int64_t>(i) * kConfig.vocab;
      split.emplace_back(from, from + kConfig.vocab);
    }
    return split;
  }

  // The logits of every token behind the prompt, one step each.
  Logits OneByOne(int32_t pages = kPages) {
    Step({PartOf(0, kPrompt, pages)});
    Logits logits;
    for (size_t i = kPrompt; i < kPrompt + kMore; ++i) {
      logits.push_back(Step({PartOf(i, i + 1, pages)}).front());
    }
    return logits;
  }

  double LargestError(std::span<const float> logits, size_t tokens,
                      const ReferenceSelection* selection) const {
    const std::vector<double> expected =
        ReferenceLogits(weights_, std::span(tokens_).first(tokens), nullptr, selection);
    double error = 0;
    for (size_t i = 0; i < logits.size(); ++i) {
      error = std::max(error, std::abs(logits[i] - expected[i]));
    }
    return error;
  }

  ScopedIsa isa_{GetParam()};
  const Weights weights_ = RandomWeights(kConfig, 3, 0.2f);
  TransformerRunner runner_{weights_, {}, 512};
  std::vector<uint32_t> tokens_ = std::vector<uint32_t>(kPrompt + kMore);
  std::vector<std::atomic<uint64_t>> serials_;
  uint64_t last_serial_ = 0;
  Buffer memory_;
  PagedKv kv_;
  std::vector<uint32_t> table_;
};

TEST_P(SelectedAttentionTest, TokensAttendToThePagesThatTheReferenceChooses) {
  const double tolerance = GetParam() == Isa::kAvx512Bf16 ? 0.25 : 2e-3;
  const ReferenceSelection selection{.pages = kPages, .page_tokens = kPageTokens, .from = kPrompt};
  const Logits logits = OneByOne();
  double to_exact = 0;
  for (const size_t i : {size_t{0}, size_t{9}, kMore - 1}) {
    EXPECT_LT(LargestError(logits[i], kPrompt + i + 1, &selection), tolerance) << "token " << i;
    to_exact = std::max(to_exact, LargestError(logits[i], kPrompt + i + 1, nullptr));
  }
  EXPECT_GT(to_exact, 4 * tolerance) << "attention to all tokens is another answer";
}

TEST_P(SelectedAttentionTest, ChunksChangeNoBit) {
  const Logits one_by_one = OneByOne();
  Renew();
  Step({PartOf(0, 7)});
  Step({PartOf(7, kPrompt - 3)});
  EXPECT_EQ(Step({PartOf(kPrompt - 3, kPrompt + 11)}).front(), one_by_one[10]);
  EXPECT_EQ(Step({PartOf(kPrompt + 11, kPrompt + kMore)}).front(), one_by_one[kMore - 1]);
  Renew();
  EXPECT_EQ(Step({PartOf(0, kPrompt + kMore)}).front(), one_by_one[kMore - 1]);
}

// Another sequence in the batch, some of whose pages are shared, and which selects fewer.
TEST_P(SelectedAttentionTest, TheBatchChangesNoBit) {
  const Logits one_by_one = OneByOne();
  std::vector<uint32_t> other_table = table_;
  std::iota(other_table.begin() + 18, other_table.end(), 60u);
  Renew();
  Step({PartOf(0, kPrompt)});
  SequenceStep other = PartOf(144, 160, 4);
  other.blocks = other_table;
  Step({other});
  for (size_t i = kPrompt; i < kPrompt + kMore; ++i) {
    SequenceStep beside = PartOf(i + 10, i + 11, 4);
    if (i + 11 > tokens_.size()) beside = PartOf(100, 101, 0);  // an exact one
    beside.blocks = other_table;
    EXPECT_EQ(Step({beside, PartOf(i, i + 1)})[1], one_by_one[i - kPrompt]) << "token " << i;
  }
}

TEST_P(SelectedAttentionTest, AtTheBudgetEveryBitIsExact) {
  const Logits exact = OneByOne(0);
  constexpr auto kAll = static_cast<int32_t>((kPrompt + kMore + kPageTokens - 1) / kPageTokens);
  EXPECT_EQ(OneByOne(kAll), exact);
  const Logits one_less = OneByOne(kAll - 1);
  for (size_t i = 0; i < kMore; ++i) {
    const bool selects = kPrompt + i >= static_cast<size_t>((kAll - 1) * kPageTokens);
    EXPECT_EQ(one_less[i] != exact[i], selects) << "token " << i;
  }
}

// Wrong guesses fill a page and are replaced by the right tokens: the bounds of their keys must not
// be used for those.
TEST_P(SelectedAttentionTest, WrongGuessesLeaveNothing) {
  const Logits one_by_one = OneByOne();
  Renew();
  Step({PartOf(0, kPrompt)});
  std::vector<uint32_t> wrong = tokens_;
  for (size_t i = kPrompt; i < wrong.size(); ++i) wrong[i] = (wrong[i] + 50) % kConfig.vocab;
  for (size_t i = kPrompt; i < kPrompt + kMore; ++i) {
    std::vector<SequenceStep> steps = {PartOf(i, i + 1)};
    // Two pages and more of guesses, each a part of its own, as a decode worker checks them.
    for (size_t g = i + 1; g < std::min(i + 20, tokens_.size()); ++g) {
      steps.push_back(PartOf(g, g + 1));
      steps.back().tokens = std::span(wrong).subspan(g, 1);
      steps.back().selection.checked = static_cast<int32_t>(i + 1);
    }
    EXPECT_EQ(Step(steps).front(), one_by_one[i - kPrompt]) << "token " << i;
  }
}

TEST_P(SelectedAttentionTest, RightGuessesAreWhatTheyWouldBe) {
  const Logits one_by_one = OneByOne();
  Renew();
  Step({PartOf(0, kPrompt)});
  std::vector<SequenceStep> steps;
  for (size_t i = kPrompt; i < kPrompt + kMore; ++i) {
    steps.push_back(PartOf(i, i + 1));
    steps.back().selection.checked = static_cast<int32_t>(kPrompt + 1);
  }
  EXPECT_EQ(Step(steps), one_by_one);
}

// Other tokens in the same blocks, which were taken anew.
TEST_P(SelectedAttentionTest, BlocksThatAreTakenAgainHaveBoundsOfTheirOwn) {
  const Logits first = OneByOne();
  const std::vector<uint32_t> tokens = tokens_;
  std::reverse(tokens_.begin(), tokens_.end());
  Renew();
  const Logits other = OneByOne();
  EXPECT_NE(other, first);
  tokens_ = tokens;
  Renew();
  EXPECT_EQ(OneByOne(), first);
}

INSTANTIATE_TEST_SUITE_P(Isas, SelectedAttentionTest, ::testing::ValuesIn(SupportedIsas()),
                         [](const auto& test) { return std::string(IsaName(test.param)); });

TEST(SelectedAttentionRefusals, SayWhatIsWrong) {
  const Weights weights = RandomWeights(kConfig, 3, 0.2f);
  ModelConfig windows = kConfig;
  windows.sliding_window = {0, 8, 0, 0};
  const Weights windowed = RandomWeights(windows, 3, 0.2f);
  TransformerRunner runner(weights, {}, 16), with_windows(windowed, {}, 16);
  EXPECT_TRUE(runner.selects_pages());
  EXPECT_FALSE(with_windows.selects_pages()) << "slots are not positions";
  const uint32_t token = 1, block = 0;
  const Buffer memory(runner.kv_layout().BlockStride());
  const auto step = [&](TransformerRunner& on, PageSelection selection, int32_t evicted = 0) {
    const SequenceStep sequence{.tokens = {&token, 1},
                                .position = 9,
                                .blocks = {&block, 1},
                                .evicted = evicted,
                                .selection = selection};
    return Message(
        on.Step({.sequences = {&sequence, 1},
                 .kv = {.arena = memory.as<std::byte>(), .blocks = 1, .layout = on.kv_layout()}}));
  };
  EXPECT_THAT(step(runner, {.pages = 3}), HasSubstr("it may select 4 or more from 0 on"));
  EXPECT_THAT(step(runner, {.pages = 4, .from = -1}), HasSubstr("from position -1 on"));
  EXPECT_THAT(step(runner, {.pages = 4}, 3), HasSubstr("has 3 evicted positions"));
  EXPECT_THAT(step(with_windows, {.pages = 4}), HasSubstr("this runner attends to all"));
  EXPECT_EQ(step(runner, {.pages = 4}), "");
}

}  // namespace
}  // namespace penstock
