// Sequences whose later tokens choose the pages that they attend to, in the forward pass of the
// CUDA backend on the emulated device: beside the CPU's runner, and against itself in other
// batches and chunks.

#include <gtest/gtest.h>

#include <atomic>
#include <numeric>

#include "model/cuda/cuda_runner.h"
#include "model/forward/runner_check.h"
#include "model/forward/transformer_runner.h"
#include "tests/cuda/cases/device_array.h"
#include "tests/cuda/runner/runner_rig.h"
#include "tests/kernels/eviction/key_pages.h"

namespace penstock {
namespace {

constexpr double kBf16Deviation = 2e-2;  // activations are bf16 on a GPU
constexpr int kPromptTokens = 150, kMore = 20;
constexpr int32_t kPages = 5, kPageTokens = 16, kBlocks = 40;

ModelConfig Config() {
  ModelConfig config = TinyConfig();
  config.layers = 4;
  return config;
}

using Logits = std::vector<std::vector<float>>;

// A runner, its pages, and a sequence of random tokens in scattered blocks.
class SelectedPages {
 public:
  explicit SelectedPages(ModelRunner& runner, KvDtype dtype = KvDtype::kBf16)
      : runner_(runner), tokens_(Prompt(kPromptTokens + kMore, 3)), serials_(kBlocks) {
    KvLayout layout = runner.kv_layout();
    layout.dtype = dtype;
    memory_ = Buffer(kBlocks * layout.BlockStride());
    std::fill_n(memory_.as<uint16_t>(), memory_.bytes() / 2, uint16_t{0xffff});  // NaN
    kv_ = {.arena = memory_.as<std::byte>(),
           .blocks = kBlocks,
           .layout = layout,
           .serials = serials_.data()};
    for (int i = 0; i < 12; ++i) {
      table_.push_back(static_cast<uint32_t>((7 * i + 3) % 23));
      other_.push_back(static_cast<uint32_t>(23 + (5 * i) % 17));
    }
    Renew();
  }

  // As if the blocks were taken for another sequence.
  void Renew() {
    for (std::atomic<uint64_t>& serial : serials_) serial = ++last_serial_;
  }
  PagedKv& kv() { return kv_; }
  const std::vector<uint32_t>& other() const { return other_; }
  std::vector<uint32_t>& tokens() { return tokens_; }

  // The sequence's tokens [first, last).
  SequenceStep PartOf(int first, int last, int32_t pages = kPages) const {
    return {.tokens = std::span(tokens_).subspan(static_cast<size_t>(first),
                                                 static_cast<size_t>(last - first)),
            .position = first,
            .blocks = table_,
            .selection = {.pages = pages, .from = kPromptTokens, .checked = last},
            .wants_logits = true};
  }

  Logits Step(const std::vector<SequenceStep>& sequences) {
    const auto vocab = static_cast<size_t>(runner_.vocab());
    std::vector<float> logits(sequences.size() * vocab);
    const absl::Status status =
        runner_.Step({.sequences = sequences,
                      .kv = kv_,
                      .logits = {logits.data(), {std::ssize(sequences), runner_.vocab()}}});
    EXPECT_TRUE(status.ok()) << Message(status);
    Logits split;
    for (size_t i = 0; i < sequences.size(); ++i) {
      split.emplace_back(logits.begin() + static_cast<int64_t>(i * vocab),
                         logits.begin() + static_cast<int64_t>((i + 1) * vocab));
    }
    return split;
  }

  // The logits of every token behind the prompt, one step each.
  Logits OneByOne(int32_t pages = kPages) {
    Step({PartOf(0, kPromptTokens, pages)});
    Logits logits;
    for (int i = kPromptTokens; i < kPromptTokens + kMore; ++i) {
      logits.push_back(Step({PartOf(i, i + 1, pages)}).front());
    }
    return logits;
  }

 private:
  ModelRunner& runner_;
  std::vector<uint32_t> tokens_;
  std::vector<std::atomic<uint64_t>> serials_;
  uint64_t last_serial_ = 0;
  Buffer memory_;
  PagedKv kv_;
  std::vector<uint32_t> table_, other_;
};

class CudaRunnerSelections : public testing::Test {
 protected:
  explicit CudaRunnerSelections(KvDtype dtype = KvDtype::kBf16)
      : dtype_(dtype), pages_(*runner_, dtype) {
    EXPECT_TRUE(runner_->KeepBounds(pages_.kv()).ok());
  }

  const KvDtype dtype_;
  const Weights weights_ = RandomWeights(Config(), 5, 0.2f);
  const std::unique_ptr<cuda::CudaDevice> device_ = *cuda::CudaDevice::Open(0);
  const std::unique_ptr<CudaRunner> runner_ =
      *CudaRunner::Create(weights_, *device_, {.selects = true});
  SelectedPages pages_;
};

class CudaRunnerSelectionFormats : public CudaRunnerSelections,
                                   public testing::WithParamInterface<KvDtype> {
 protected:
  CudaRunnerSelectionFormats() : CudaRunnerSelections(GetParam()) {}
};

double Median(std::vector<double> values) {
  std::ranges::sort(values);
  return values[values.size() / 2];
}

// Of some tokens the last page that is chosen is another one, because activations are rounded.
TEST_P(CudaRunnerSelectionFormats, AreNearThoseOfTheCpu) {
  TransformerRunner cpu(weights_, {}, 512);
  const Logits got = pages_.OneByOne(), want = SelectedPages(cpu, GetParam()).OneByOne();
  const Logits exact = pages_.OneByOne(0);
  std::vector<double> off, to_exact;
  for (size_t i = 0; i < got.size(); ++i) {
    off.push_back(Deviation(got[i], want[i]));
    to_exact.push_back(Deviation(got[i], exact[i]));
  }
  if (GetParam() == KvDtype::kBf16) {
    EXPECT_LT(Median(off), kBf16Deviation);
  }
  EXPECT_LT(2 * Median(off), Median(to_exact)) << "attention to all tokens is another answer";
}

TEST_F(CudaRunnerSelections, ChunksChangeNoBit) {
  const Logits one_by_one = pages_.OneByOne();
  pages_.Renew();
  pages_.Step({pages_.PartOf(0, 7)});
  pages_.Step({pages_.PartOf(7, kPromptTokens - 3)});
  EXPECT_EQ(pages_.Step({pages_.PartOf(kPromptTokens - 3, kPromptTokens + 11)}).front(),
            one_by_one[10]);
  EXPECT_EQ(pages_.Step({pages_.PartOf(kPromptTokens + 11, kPromptTokens + kMore)}).front(),
            one_by_one[kMore - 1]);
  pages_.Renew();
  EXPECT_EQ(pages_.Step({pages_.PartOf(0, kPromptTokens + kMore)}).front(), one_by_one[kMore - 1]);
}

// Another sequence in the batch, which selects fewer pages, or none.
TEST_P(CudaRunnerSelectionFormats, TheBatchChangesNoBit) {
  const Logits one_by_one = pages_.OneByOne();
  pages_.Renew();
  SequenceStep other = pages_.PartOf(0, kPromptTokens, 4);
  other.blocks = pages_.other();
  pages_.Step({pages_.PartOf(0, kPromptTokens), other});
  for (int i = kPromptTokens; i < kPromptTokens + kMore; ++i) {
    SequenceStep beside = pages_.PartOf(i, i + 1, i % 3 == 0 ? 0 : 4);
    beside.blocks = pages_.other();
    EXPECT_EQ(pages_.Step({beside, pages_.PartOf(i, i + 1)})[1],
              one_by_one[static_cast<size_t>(i - kPromptTokens)])
        << "token " << i;
  }
}

TEST_F(CudaRunnerSelections, AtTheBudgetEveryBitIsExact) {
  const Logits exact = pages_.OneByOne(0);
  constexpr int32_t kAll = (kPromptTokens + kMore + kPageTokens - 1) / kPageTokens;
  EXPECT_EQ(pages_.OneByOne(kAll), exact);
  const Logits one_less = pages_.OneByOne(kAll - 1);
  for (int i = 0; i < kMore; ++i) {
    const bool selects = kPromptTokens + i >= (kAll - 1) * kPageTokens;
    EXPECT_EQ(one_less[static_cast<size_t>(i)] != exact[static_cast<size_t>(i)], selects) << i;
  }
}

// Steps of one token for each sequence, some of which select: as graphs, which are used again when
// the numbers of pages are near.
TEST_F(CudaRunnerSelections, GraphsChangeNoBit) {
  CudaRunner::Options options{.graphs_max = 0, .selects = true};
  const auto plain = *CudaRunner::Create(weights_, *device_, options);
  SelectedPages without(*plain, dtype_);
  ASSERT_TRUE(plain->KeepBounds(without.kv()).ok());
  for (SelectedPages* pages : {&pages_, &without}) {
    SequenceStep other = pages->PartOf(0, kPromptTokens, 4);
    other.blocks = pages->other();
    pages->Step({pages->PartOf(0, kPromptTokens), other});
  }
  for (int i = kPromptTokens; i < kPromptTokens + kMore; ++i) {
    Logits found[2];
    for (SelectedPages* pages : {&pages_, &without}) {
      SequenceStep beside = pages->PartOf(i, i + 1, i % 4 == 3 ? 0 : 4);
      beside.blocks = pages->other();
      const bool three = i % 5 == 4;  // padded to four
      std::vector<SequenceStep> steps = {beside, pages->PartOf(i, i + 1)};
      if (three) steps.push_back(steps[0]);
      found[pages == &pages_ ? 0 : 1] = pages->Step(steps);
    }
    EXPECT_EQ(found[0], found[1]) << "token " << i;
  }
  EXPECT_GT(runner_->graphs().launches(), 4);
  EXPECT_EQ(plain->graphs().launches(), 0);
}

// Wrong guesses fill a page and are replaced by the right tokens.
TEST_F(CudaRunnerSelections, WrongGuessesLeaveNothing) {
  const Logits one_by_one = pages_.OneByOne();
  pages_.Renew();
  pages_.Step({pages_.PartOf(0, kPromptTokens)});
  std::vector<uint32_t> wrong = pages_.tokens();
  for (size_t i = kPromptTokens; i < wrong.size(); ++i) wrong[i] = (wrong[i] + 50) % 101;
  for (int i = kPromptTokens; i < kPromptTokens + kMore; ++i) {
    std::vector<SequenceStep> steps = {pages_.PartOf(i, i + 1)};
    for (int g = i + 1; g < kPromptTokens + kMore; ++g) {
      steps.push_back(pages_.PartOf(g, g + 1));
      steps.back().tokens = std::span(wrong).subspan(static_cast<size_t>(g), 1);
      steps.back().selection.checked = i + 1;
    }
    EXPECT_EQ(pages_.Step(steps).front(), one_by_one[static_cast<size_t>(i - kPromptTokens)])
        << "token " << i;
  }
}

// Other tokens in the same blocks, which were taken anew.
TEST_F(CudaRunnerSelections, BlocksThatAreTakenAgainHaveBoundsOfTheirOwn) {
  const Logits first = pages_.OneByOne();
  const std::vector<uint32_t> tokens = pages_.tokens();
  std::reverse(pages_.tokens().begin(), pages_.tokens().end());
  pages_.Renew();
  EXPECT_NE(pages_.OneByOne(), first);
  pages_.tokens() = tokens;
  pages_.Renew();
  EXPECT_EQ(pages_.OneByOne(), first);
}

INSTANTIATE_TEST_SUITE_P(Formats, CudaRunnerSelectionFormats,
                         testing::Values(KvDtype::kBf16, KvDtype::kK3v3),
                         [](const testing::TestParamInfo<KvDtype>& of) {
                           return std::string(KvDtypeName(of.param));
                         });

// Many rows of a long sequence choose in several launches.
TEST(PageSelectorTest, MemoryForScoresChangesNoChoice) {
  constexpr int32_t kHeads = 4, kRows = 5, kKept = 3, kAll = 12;
  const KvLayout layout{.layers = 1, .kv_heads = 2, .head_dim = 64, .block_tokens = 16};
  KeyPages pages(layout, kAll * 16, 8, 5);
  const cuda::DeviceArray<uint32_t> table(pages.blocks());
  std::vector<cuda::SelectRow> rows;
  for (int32_t i = 0; i < kRows; ++i) {
    rows.push_back({.query = i, .table = 0, .pages = kAll - i, .keep = kKept});
  }
  const cuda::DeviceArray<cuda::SelectRow> there(rows);
  std::vector<Bf16> queries;
  for (const float x : RandomData(12).Floats(kRows * kHeads * 64)) queries.push_back(ToBf16(x));
  const cuda::DeviceArray<Bf16> asked(queries);
  const auto choice = [&](size_t scores_bytes_max) {
    const auto selector = *PageSelector::Create(pages.kv(), kHeads, scores_bytes_max);
    EXPECT_TRUE(selector->Reserve(kRows, kAll, kKept).ok());
    selector->FindBounds(pages.kv(), 0, table.data(), kAll, nullptr);
    const uint32_t* chosen = selector->Choose(0,
                                              {.rows = there.data(),
                                               .count = kRows,
                                               .pages_max = kAll,
                                               .keep_max = kKept,
                                               .tables = table.data(),
                                               .table_stride = kAll,
                                               .queries = asked.data()},
                                              nullptr);
    std::vector<uint32_t> blocks(kRows * 2 * kKept);
    cuda::CopyToHost(blocks.data(), chosen, blocks.size() * sizeof(uint32_t), nullptr);
    cuda::Synchronize(nullptr);
    return blocks;
  };
  constexpr size_t kRowBytes = 2 * kAll * sizeof(float);
  const std::vector<uint32_t> together = choice(1 << 20);
  EXPECT_NE(together.front(), together.back());
  for (const size_t bytes : {size_t{1}, 2 * kRowBytes, 3 * kRowBytes}) {
    EXPECT_EQ(choice(bytes), together) << bytes;
  }
}

TEST(CudaRunnerSelectionRefusals, AreWhereThereIsNoPlaceForThem) {
  const auto device = *cuda::CudaDevice::Open(0);
  ModelConfig config = Config();
  const auto able = [&](const CudaRunner::Options& options) {
    const Weights weights = RandomWeights(config, 5, 0.2f);
    const auto runner = *CudaRunner::Create(weights, *device, options);
    SelectedPages pages(*runner);
    EXPECT_TRUE(runner->KeepBounds(pages.kv()).ok());
    EXPECT_EQ(runner->BoundsBytes(pages.kv().layout) > 0, runner->selects_pages());
    if (!runner->selects_pages()) {
      const SequenceStep step = pages.PartOf(0, 4);
      EXPECT_EQ(runner->Step({.sequences = {&step, 1}, .kv = pages.kv()}).code(),
                absl::StatusCode::kInvalidArgument);
    }
    return runner->selects_pages();
  };
  EXPECT_TRUE(able({.selects = true}));
  EXPECT_FALSE(able({}));
  config.sliding_window = {0, 10, 0, 0};
  EXPECT_FALSE(able({.selects = true}));
}

}  // namespace
}  // namespace penstock
