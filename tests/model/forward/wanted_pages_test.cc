// What the forward pass tells the pager of an arena in a file: all pages that it reads, those that
// are known before their layer a layer ahead, and none that it does not read.

#include "kernels/wanted_pages.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <iterator>
#include <map>
#include <numeric>
#include <set>

#include "kernels/kv_pager.h"
#include "model/forward/step_selection.h"
#include "model/forward/transformer_runner.h"

namespace penstock {
namespace {

using ::testing::ElementsAre;

constexpr size_t kPrompt = 150;
constexpr int32_t kPages = 5, kPageTokens = 8;

const ModelConfig kConfig{.layers = 4,
                          .hidden = 48,
                          .intermediate = 64,
                          .heads = 4,
                          .kv_heads = 2,
                          .head_dim = 16,
                          .vocab = 101,
                          .max_position = 400};

class RecordingPager final : public KvPager {
 public:
  uint64_t memory_bytes() const override { return 0; }
  void OnTaken(uint32_t) override {}
  std::vector<uint32_t> OnWanted(std::span<const uint32_t> blocks, int32_t layer) override {
    if (blocks.empty()) return {};
    order.push_back(layer);
    wanted[layer].insert(blocks.begin(), blocks.end());
    return Missing(blocks);
  }
  std::vector<uint32_t> OnGuessed(std::span<const uint32_t> blocks, int32_t layer) override {
    guessed[layer] = {blocks.begin(), blocks.end()};
    return Missing(blocks);
  }

  std::map<int32_t, std::set<uint32_t>> wanted;   // by layer
  std::vector<int32_t> order;                     // the layers, as they were told
  std::map<int32_t, std::set<uint32_t>> guessed;  // by layer
  bool reads = false;                             // nothing is in memory

 private:
  std::vector<uint32_t> Missing(std::span<const uint32_t> blocks) const {
    return reads ? std::vector<uint32_t>(blocks.begin(), blocks.end()) : std::vector<uint32_t>();
  }
};

class WantedPagesTest : public testing::Test {
 protected:
  WantedPagesTest() : serials_(40) {
    for (size_t i = 0; i < tokens_.size(); ++i) tokens_[i] = static_cast<uint32_t>(i * 37 % 101);
    KvLayout layout = runner_.kv_layout();
    layout.block_tokens = kPageTokens;
    memory_ = Buffer(40 * layout.BlockStride());
    kv_ = {.arena = memory_.as<std::byte>(),
           .blocks = 40,
           .layout = layout,
           .serials = serials_.data(),
           .pager = &pager_};
    table_.resize(30);
    std::iota(table_.begin(), table_.end(), 7u);
    for (std::atomic<uint64_t>& serial : serials_) serial = 1;
  }

  // Returns the logits.
  std::vector<float> Step(size_t first, size_t last, int32_t pages, bool wants_logits = true) {
    pager_.wanted.clear();
    pager_.order.clear();
    pager_.guessed.clear();
    const SequenceStep step{.tokens = std::span(tokens_).subspan(first, last - first),
                            .position = static_cast<int32_t>(first),
                            .blocks = table_,
                            .selection = {.pages = pages,
                                          .from = static_cast<int32_t>(kPrompt),
                                          .checked = static_cast<int32_t>(last)},
                            .wants_logits = wants_logits,
                            .bytes_read = &bytes_read_};
    std::vector<float> logits(static_cast<size_t>(kConfig.vocab));
    const absl::Status status =
        runner_.Step({.sequences = {&step, 1},
                      .kv = kv_,
                      .logits = {logits.data(), {wants_logits ? 1 : 0, kConfig.vocab}}});
    EXPECT_TRUE(status.ok()) << Message(status);
    return logits;
  }

  // The blocks of the sequence's first `tokens` tokens.
  std::set<uint32_t> Blocks(size_t tokens) const {
    return {table_.begin(), table_.begin() + kv_.layout.BlocksFor(static_cast<int64_t>(tokens))};
  }

  // With small weights a layer changes the residual little, as in trained models.
  const Weights weights_ = RandomWeights(kConfig, 3, 0.02f);
  TransformerRunner runner_{weights_, {}, 512};
  std::vector<uint32_t> tokens_ = std::vector<uint32_t>(kPrompt + 20);
  std::vector<std::atomic<uint64_t>> serials_;
  Buffer memory_;
  RecordingPager pager_;
  PagedKv kv_;
  std::vector<uint32_t> table_;
  uint64_t bytes_read_ = 0;
};

TEST_F(WantedPagesTest, APromptWantsItsPagesALayerAhead) {
  Step(0, 100, 0, /*wants_logits=*/false);
  EXPECT_THAT(pager_.order, ElementsAre(0, 1, 2, 3));
  for (int32_t layer = 0; layer < kConfig.layers; ++layer) {
    EXPECT_EQ(pager_.wanted[layer], Blocks(100)) << layer;
  }
  Step(100, kPrompt, 0);
  for (int32_t layer = 0; layer < kConfig.layers; ++layer) {
    EXPECT_EQ(pager_.wanted[layer], Blocks(kPrompt)) << layer;
  }
}

// The first token that selects needs the bounds of all pages; the next ones do not.
TEST_F(WantedPagesTest, ATokenThatSelectsWantsWhatItChooses) {
  Step(0, kPrompt, kPages);
  Step(kPrompt, kPrompt + 1, kPages);
  for (int32_t layer = 0; layer < kConfig.layers; ++layer) {
    EXPECT_EQ(pager_.wanted[layer], Blocks(kPrompt + 1)) << layer;
  }
  Step(kPrompt + 1, kPrompt + 2, kPages);
  EXPECT_THAT(pager_.order, ElementsAre(0, 1, 2, 3));
  for (int32_t layer = 0; layer < 2; ++layer) {
    EXPECT_EQ(pager_.wanted[layer], Blocks(kPrompt + 2)) << layer;
  }
  const std::set<uint32_t> all = Blocks(kPrompt + 2);
  for (int32_t layer = 2; layer < kConfig.layers; ++layer) {
    const std::set<uint32_t>& wanted = pager_.wanted[layer];
    EXPECT_TRUE(std::includes(all.begin(), all.end(), wanted.begin(), wanted.end()));
    EXPECT_GE(wanted.size(), static_cast<size_t>(kPages)) << layer;
    EXPECT_LE(wanted.size(), static_cast<size_t>(kPages * kConfig.kv_heads)) << layer;
    EXPECT_TRUE(wanted.contains(table_[0]) && wanted.contains(*all.rbegin())) << layer;
  }
}

// While pages have to be read, every other step guesses the pages of a layer before it has the
// layer's queries. Most guesses are right, and they change no logits.
TEST_F(WantedPagesTest, PagesThatWillBeChosenAreGuessedALayerAhead) {
  Step(0, kPrompt, kPages);
  for (size_t i = 0; i < 3; ++i) Step(kPrompt + i, kPrompt + i + 1, kPages);
  const std::vector<float> logits = Step(kPrompt + 3, kPrompt + 4, kPages);
  const auto chosen = pager_.wanted;
  EXPECT_TRUE(pager_.guessed.empty());

  pager_.reads = true;
  Step(kPrompt + 2, kPrompt + 3, kPages);
  EXPECT_TRUE(pager_.guessed.empty());  // steps without guesses take turns with such that guess
  EXPECT_EQ(Step(kPrompt + 3, kPrompt + 4, kPages), logits);
  EXPECT_EQ(pager_.wanted, chosen);
  EXPECT_EQ(pager_.guessed.size(), 2u);
  for (const auto& [layer, guessed] : pager_.guessed) {
    EXPECT_GE(layer, 2);
    std::vector<uint32_t> right;
    std::ranges::set_intersection(guessed, pager_.wanted[layer], std::back_inserter(right));
    EXPECT_GE(right.size() * 4, pager_.wanted[layer].size() * 3) << layer;
  }

  pager_.reads = false;
  Step(kPrompt + 3, kPrompt + 4, kPages);
  EXPECT_EQ(Step(kPrompt + 3, kPrompt + 4, kPages), logits);
  EXPECT_TRUE(pager_.guessed.empty());
}

// A prompt reads all of its pages, a token those of the first two layers and what it chooses.
TEST_F(WantedPagesTest, BytesAreThoseThatWereNotInMemory) {
  Step(0, kPrompt, kPages);
  Step(kPrompt, kPrompt + 1, kPages);
  EXPECT_EQ(bytes_read_, 0u);
  pager_.reads = true;
  Step(0, kPrompt, kPages);
  const auto layer = kv_.layout.LayerBytes();
  EXPECT_EQ(bytes_read_, kConfig.layers * Blocks(kPrompt).size() * layer);
  bytes_read_ = 0;
  Step(kPrompt + 1, kPrompt + 2, kPages);
  size_t wanted = 0;
  for (const auto& [_, blocks] : pager_.wanted) wanted += blocks.size();
  for (const auto& [_, blocks] : pager_.guessed) wanted += blocks.size();
  EXPECT_EQ(bytes_read_, wanted * layer);
}

// Two sequences with a common page, in a layer in which both select.
TEST(CountReads, CountsAPageForTheFirstThatSelectedIt) {
  const std::vector<uint32_t> first = {3, 5, 5, 9}, second = {5, 7, 9, 11};
  const AttentionSequence sequences[] = {
      {.first_row = 0, .rows = 1, .blocks = first, .head_blocks = 2},
      {.first_row = 1, .rows = 1, .blocks = first},  // attends to all
      {.first_row = 2, .rows = 1, .blocks = second, .head_blocks = 2}};
  std::vector<int64_t> reads(3);
  CountReads({3, 5, 7, 11}, sequences, reads);
  EXPECT_THAT(reads, ElementsAre(2, 0, 2));
}

// A page whose bounds no step has computed cannot be guessed.
TEST_F(WantedPagesTest, RowsWhoseBoundsAreMissingGuessNothing) {
  pager_.reads = true;
  Step(0, kPrompt, kPages);
  Step(kPrompt, kPrompt + 1, kPages);
  for (std::atomic<uint64_t>& serial : serials_) serial = 2;  // all blocks were taken again
  Step(kPrompt + 1, kPrompt + 2, kPages);
  EXPECT_EQ(pager_.guessed.size(), 2u);
  for (const auto& [layer, guessed] : pager_.guessed) EXPECT_TRUE(guessed.empty()) << layer;
}

TEST(WantPages, AWindowWantsTheBlocksThatItsTokensSee) {
  RecordingPager pager;
  const PagedKv kv{.blocks = 40, .layout = {.layers = 1, .block_tokens = 8}, .pager = &pager};
  std::vector<uint32_t> table(20);
  std::iota(table.begin(), table.end(), 0u);
  const AttentionSequence sequence{.rows = 10, .position = 40, .blocks = table};
  std::vector<int64_t> reads(10);
  WantPages(kv, 0, /*window=*/9, {&sequence, 1}, reads);
  EXPECT_THAT(pager.wanted[0], ElementsAre(4, 5, 6));  // tokens 32 to 49
  EXPECT_EQ(reads[0], 0);
  pager.reads = true;
  WantPages(kv, 0, /*window=*/9, {&sequence, 1}, reads);
  EXPECT_EQ(reads[0], 3);
}

TEST(BytesWanted, AreAllPagesOrTheChosenOnes) {
  const KvLayout layout{.layers = 6, .kv_heads = 2, .head_dim = 16, .block_tokens = 8};
  const uint64_t layer = layout.LayerBytes();
  EXPECT_EQ(StepSelection::BytesWanted(layout, 100, {}), 6 * 13 * layer);
  const PageSelection selection{.pages = 5, .from = 90};
  EXPECT_EQ(StepSelection::BytesWanted(layout, 90, selection),
            6 * 12 * layer);  // it does not select yet
  EXPECT_EQ(StepSelection::BytesWanted(layout, 100, selection), (2 * 13 + 4 * 5 * 2) * layer);
  EXPECT_EQ(StepSelection::BytesWanted(layout, 100, {.pages = 7, .from = 90}), 6 * 13 * layer);
}

}  // namespace
}  // namespace penstock
