// Pages with a span, whose layers are stored twice, on several emulated GPUs, beside one of them
// and the CPU. NCCL is a fake.

#include <gtest/gtest.h>

#include <algorithm>

#include "model/forward/runner_check.h"
#include "tests/cuda/runner/degrees_rig.h"
#include "tests/support/environment.h"

namespace penstock {
namespace {

constexpr double kSpanDeviation = 2e-2;  // activations are bf16 on GPUs
constexpr int kPrompt = 79;              // tokens of two spans

struct SpanCase {
  const char* format;
  int ranks = 2;
};
void PrintTo(const SpanCase& c, std::ostream* out) { *out << c.format << " on " << c.ranks; }

class ShardedSpansTest : public testing::TestWithParam<SpanCase> {
 protected:
  ShardedSpansTest() { AddRandomMeans(weights_); }

  const ScopedEnvironment gpus_{"PENSTOCK_EMULATED_GPUS", "4"};
  const KvPageFormat format_ = *KvPageFormatOf(GetParam().format);
  const int ranks_ = GetParam().ranks;
  Weights weights_ = RandomWeights(SmallConfig(), 5, 0.2f);
};

std::vector<uint32_t> PartOf(const std::vector<uint32_t>& prompt, int from, int to) {
  return {prompt.begin() + from, prompt.begin() + to};
}

// As near to the CPU as one GPU is. Each reads codes that it has written itself, and few bits get
// the next code now and then. Rows of the first span, of later ones, and the first of a span.
TEST_P(ShardedSpansTest, AgreeWithOneGpuAndTheCpu) {
  ManyGpusRig many(weights_, ranks_, format_);
  OneGpuRig one(weights_, format_);
  CpuRig cpu(weights_, format_);
  const bool few = CodeBits(format_.dtype, KvPlane::kValues) <= 4;
  const double limit = few ? 4 * kSpanDeviation : kSpanDeviation;
  const auto step = [&](const std::vector<Feed>& feeds) {
    const std::vector<float> want = cpu.Step(feeds), got = many.Step(feeds);
    EXPECT_LT(Deviation(got, want), limit);
    EXPECT_LT(Deviation(got, one.Step(feeds)), limit / 2);
  };
  step({{0, Prompt(kPrompt, 1), 0}, {1, Prompt(63, 2), 0}});
  step({{2, Prompt(9, 3), 0}, {0, {7}, kPrompt}, {1, {9, 11}, 63}});
  step({{1, {3}, 65}, {2, {5}, 9, false}, {0, {13}, kPrompt + 1}});
}

TEST_P(ShardedSpansTest, NeitherNeighboursNorChunksNorTimesChangeABit) {
  ManyGpusRig whole(weights_, ranks_, format_), chunks(weights_, ranks_, format_);
  const std::vector<uint32_t> prompt = Prompt(kPrompt, 6);
  const std::vector<float> want = whole.Step({{0, prompt, 0}});
  EXPECT_EQ(whole.Step({{2, prompt, 0}}), want);
  chunks.Step({{1, Prompt(70, 4), 0}, {0, PartOf(prompt, 0, 27), 0, false}});
  chunks.Step({{0, PartOf(prompt, 27, 66), 27, false}});
  const std::vector<float> got =
      chunks.Step({{2, {1}, 0}, {0, PartOf(prompt, 66, kPrompt), 66}, {1, {2}, 70}});
  EXPECT_TRUE(std::equal(want.begin(), want.end(), got.begin() + weights_.config.vocab));
  EXPECT_EQ(chunks.Pages(0), whole.Pages(0));
  // Another format has another answer.
  ManyGpusRig plain(weights_, ranks_, format_.dtype);
  EXPECT_NE(plain.Step({{0, prompt, 0}}), want);
}

// The first layer's keys and values, in both copies, come of the same arithmetic.
TEST_P(ShardedSpansTest, PagesAreThoseOfOneGpu) {
  ManyGpusRig many(weights_, ranks_, format_);
  OneGpuRig one(weights_, format_);
  const std::vector<Feed> prompt = {{0, Prompt(kPrompt, 8), 0}};
  many.Step(prompt);
  one.Step(prompt);
  const std::vector<std::byte> got = many.Pages(0), want = one.Pages(0);
  const KvLayout& layout = one.kv().layout;
  for (int32_t copy = 0; copy < 2; ++copy) {
    for (size_t page = 0; page < kPrompt / 16; ++page) {
      const auto at =
          static_cast<ptrdiff_t>(page * layout.PayloadBytes() + layout.BytesBefore(copy));
      const auto bytes = static_cast<ptrdiff_t>(layout.BytesOf(copy));
      EXPECT_TRUE(std::equal(want.begin() + at, want.begin() + at + bytes, got.begin() + at))
          << copy << " of " << page;
      EXPECT_GT(std::count_if(got.begin() + at, got.begin() + at + bytes,
                              [](std::byte byte) { return byte != std::byte{0}; }),
                bytes / 2);
    }
  }
}

// Several GPUs compute a prompt, and one GPU or the CPU continues it; and the other way round.
TEST_P(ShardedSpansTest, PagesServeOtherDegrees) {
  const std::vector<Feed> prompt = {{0, Prompt(kPrompt, 8), 0}}, next = {{0, {4}, kPrompt}};
  ManyGpusRig many(weights_, ranks_, format_), again(weights_, ranks_, format_);
  OneGpuRig one(weights_, format_);
  CpuRig cpu(weights_, format_);
  many.Step(prompt);
  cpu.TakePages(many, 0);
  one.TakePages(many, 0);
  again.TakePages(one, 0);
  const std::vector<float> want = many.Step(next);
  EXPECT_LT(Deviation(cpu.Step(next), want), kSpanDeviation);
  EXPECT_LT(Deviation(one.Step(next), want), kSpanDeviation / 2);
  EXPECT_EQ(again.Step(next), want);
}

TEST_P(ShardedSpansTest, GraphsChangeNoBit) {
  ManyGpusRig graphed(weights_, ranks_, format_);
  ManyGpusRig plain(weights_, ranks_, format_, {.graphs_max = 0});
  const auto step = [&](const std::vector<Feed>& feeds) {
    EXPECT_EQ(graphed.Step(feeds), plain.Step(feeds));
  };
  step({{0, Prompt(62, 1), 0}, {1, Prompt(9, 2), 0}});
  for (int32_t i = 0; i < 6; ++i) step({{0, {7}, 62 + i}, {1, {5}, 9 + i}});
  EXPECT_EQ(graphed.Pages(0), plain.Pages(0));
  EXPECT_GE(graphed.graphs().launches(), 3);
}

TEST_P(ShardedSpansTest, TellOfBothCopiesOfALayer) {
  ManyGpusRig rig(weights_, ranks_, format_);
  std::vector<std::pair<int, int>> told;
  rig.on_layers_done = [&](int32_t first, int32_t last) { told.emplace_back(first, last); };
  const std::vector<std::pair<int, int>> both = {{0, 2}, {2, 4}};
  rig.Step({{0, Prompt(5, 1), 0}});
  EXPECT_EQ(told, both);
  told.clear();
  rig.Step({{0, {3}, 5}});  // as a graph
  EXPECT_EQ(told, both);
}

INSTANTIATE_TEST_SUITE_P(Formats, ShardedSpansTest,
                         testing::Values(SpanCase{"k3v3+64", 2}, SpanCase{"i4r+64", 2},
                                         SpanCase{"k3v3c+64", 2}, SpanCase{"k3v2+64", 4},
                                         SpanCase{"i8c+64", 4}));

TEST(ShardedSpans, CentredKeysNeedMeans) {
  const ScopedEnvironment gpus("PENSTOCK_EMULATED_GPUS", "2");
  const Weights weights = RandomWeights(SmallConfig(), 5, 0.2f);
  ManyGpusRig rig(weights, 2, *KvPageFormatOf("i8c+64"));
  const std::vector<uint32_t> token = {1};
  const SequenceStep step{.tokens = token, .blocks = rig.Table(0)};
  EXPECT_EQ(Message(rig.runner().Step({.sequences = {&step, 1}, .kv = rig.kv()})),
            "kv.layout has centred keys, and the weights have no means of keys");
}

}  // namespace
}  // namespace penstock
