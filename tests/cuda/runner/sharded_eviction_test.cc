// Evictions with tensor parallelism on emulated GPUs, each of which scores and moves the slots of
// its own heads: beside one GPU that has all of them.

#include <dlfcn.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <random>

#include "model/forward/runner_check.h"
#include "tests/contract/fake_nccl/fake_nccl.h"
#include "tests/cuda/runner/degrees_rig.h"
#include "tests/support/environment.h"

namespace penstock {
namespace {

constexpr double kActivationDeviation = 2e-2;  // activations are bf16 on GPUs
constexpr int32_t kTokens = 90, kKept = 50;
constexpr int64_t kHeads = 8, kKvHeads = 4, kWidth = kHeads * 64;

// Numbers that bf16 has, other ones for each head.
std::vector<float> RandomQueries(int64_t rows) {
  std::mt19937 random(11);
  std::normal_distribution<float> normal;
  std::vector<float> queries(static_cast<size_t>(rows * kWidth));
  for (float& x : queries) x = ToFloat(ToBf16(normal(random)));
  return queries;
}

class ShardedEvictionTest : public testing::TestWithParam<int> {
 protected:
  // Of the same bits on all rigs: a prompt in sequence 0.
  void Fill(Rig& one, Rig& many) {
    one.Step({{0, Prompt(kTokens, 1), 0, false}});
    for (int sequence = 0; sequence < 3; ++sequence) many.TakePages(one, sequence);
  }
  static KeyScoresArgs Keys(const Rig& rig, KeyScoring scoring, const std::vector<float>& queries) {
    const int64_t rows = std::ssize(queries) / kWidth;
    return {.scoring = scoring,
            .kv = rig.kv(),
            .layer = 1,
            .blocks = rig.Table(0),
            .tokens = kTokens,
            .evicted = 7,
            .queries = {queries.data(), {rows, kWidth}},
            .heads = static_cast<int32_t>(kHeads),
            .scale = 0.2f,
            .cap = 0,
            .scores = {}};
  }
  static void ScoreAttention(Rig& rig) {
    const std::vector<float> queries = RandomQueries(70);
    std::vector<float> scores(kKvHeads * kTokens);
    KeyScoresArgs keys = Keys(rig, KeyScoring::kAttention, queries);
    keys.scores = {scores.data(), {kKvHeads, kTokens}};
    rig.runner().eviction_attention()->evictor->Score(keys);
  }
  static std::vector<std::byte> AllPages(const Rig& rig) {
    std::vector<std::byte> all;
    for (int sequence = 0; sequence < 3; ++sequence) {
      const std::vector<std::byte> pages = rig.Pages(sequence);
      all.insert(all.end(), pages.begin(), pages.end());
    }
    return all;
  }

  const ScopedEnvironment gpus_{"PENSTOCK_EMULATED_GPUS", "4"};
  const Weights weights_ = RandomWeights(SmallConfig(), 5, 0.2f);
};

constexpr KeyScoring kScorings[] = {KeyScoring::kAttention,     KeyScoring::kLayerAttention,
                                    KeyScoring::kKeyDifference, KeyScoring::kKeyNorm,
                                    KeyScoring::kRandom,        KeyScoring::kNone};

// More queries than a GPU takes at once, and as many as there are keys.
TEST_P(ShardedEvictionTest, ScoresHaveTheBitsOfOneGpu) {
  for (const KvDtype dtype : {KvDtype::kBf16, KvDtype::kI4r}) {
    OneGpuRig one(weights_, dtype, {.evicts = true});
    ManyGpusRig many(weights_, GetParam(), dtype, {.evicts = true});
    Fill(one, many);
    for (const KeyScoring scoring : kScorings) {
      const std::vector<float> queries = RandomQueries(70);
      const auto scores_of = [&](Rig& rig) {
        std::vector<float> scores(kKvHeads * kTokens, -1.0f);
        KeyScoresArgs keys = Keys(rig, scoring, queries);
        keys.scores = {scores.data(), {kKvHeads, kTokens}};
        rig.runner().eviction_attention()->evictor->Score(keys);
        return scores;
      };
      EXPECT_EQ(scores_of(many), scores_of(one))
          << KvDtypeName(dtype) << " " << static_cast<int>(scoring);
    }
  }
}

// Rows of sums may be longer than the sequence is as yet; what is behind stays.
TEST_P(ShardedEvictionTest, AttentionIsAddedToTheSumsOfEveryHead) {
  OneGpuRig one(weights_, KvDtype::kBf16, {.evicts = true});
  ManyGpusRig many(weights_, GetParam(), KvDtype::kBf16, {.evicts = true});
  Fill(one, many);
  constexpr int64_t kStride = kTokens + 5;
  const std::vector<float> queries = RandomQueries(9);
  const auto sums_of = [&](Rig& rig) {
    std::vector<float> sums(kKvHeads * kStride);
    for (size_t i = 0; i < sums.size(); ++i) sums[i] = 0.25f * static_cast<float>(i % 13);
    KeyScoresArgs keys = Keys(rig, KeyScoring::kAttention, queries);
    keys.scores = {sums.data(), {kKvHeads, kStride}};
    rig.runner().eviction_attention()->evictor->AddAttention(keys);
    return sums;
  };
  const std::vector<float> want = sums_of(one);
  EXPECT_EQ(sums_of(many), want);
  for (int64_t head = 0; head < kKvHeads; ++head) {
    const int64_t behind = head * kStride + kTokens;
    EXPECT_EQ(want[behind], 0.25f * static_cast<float>(behind % 13));
    EXPECT_NE(want[behind - 1], 0.25f * static_cast<float>((behind - 1) % 13));
  }
}

// To other blocks, and in place as while decoding. No other byte changes.
TEST_P(ShardedEvictionTest, WhatStaysHasTheBitsOfOneGpu) {
  for (const KvDtype dtype : {KvDtype::kBf16, KvDtype::kK8v4}) {
    OneGpuRig one(weights_, dtype, {.evicts = true});
    ManyGpusRig many(weights_, GetParam(), dtype, {.evicts = true});
    Fill(one, many);
    for (const KeyScoring scoring : {KeyScoring::kAttention, KeyScoring::kRandom}) {
      for (const int to : {1, 0}) {
        const std::vector<float> queries = RandomQueries(20);
        for (Rig* rig : {static_cast<Rig*>(&one), static_cast<Rig*>(&many)}) {
          EvictLayer(*rig->runner().eviction_attention()->evictor,
                     {.keys = Keys(*rig, scoring, queries),
                      .rule = {.keep = kKept, .first = 2, .last = 10, .pool = 3},
                      .to = rig->Table(to)});
        }
        EXPECT_EQ(AllPages(many), AllPages(one)) << KvDtypeName(dtype) << " to " << to;
      }
    }
  }
}

// Joined in the order of heads, layer by layer, before the layer is reported; and the step has the
// bits of one without. The first layer's are of the same arithmetic on any number of GPUs.
TEST_P(ShardedEvictionTest, GivesTheQueriesOfAllHeads) {
  OneGpuRig one(weights_, KvDtype::kBf16, {.evicts = true});
  ManyGpusRig many(weights_, GetParam(), KvDtype::kBf16, {.evicts = true});
  const std::vector<Feed> feeds = {{1, Prompt(5, 2), 0}, {0, Prompt(40, 1), 0}};
  const std::vector<float> want = many.Step(feeds);
  for (const auto& observed : {std::vector<RowRange>{{.first = 3, .count = 2}, {40, 5}}, {}}) {
    std::vector<int32_t> order;  // layers whose queries came, and those reported from 100 on
    std::vector<std::vector<float>> of_one, of_many;
    const auto listen = [&](Rig& rig, std::vector<std::vector<float>>& to) {
      rig.observed = observed;
      rig.on_queries = [&](int32_t layer, View<const float, 2> queries) {
        order.push_back(layer);
        if (layer == 0) ScoreAttention(rig);  // longer than the ranks need for the next layer
        EXPECT_EQ(queries.dim(0), 45);
        EXPECT_EQ(queries.dim(1), kWidth);
        std::vector<float>& rows = to.emplace_back();
        for (const RowRange& range : observed.empty() ? std::vector<RowRange>{{0, 45}} : observed) {
          rows.insert(rows.end(), queries.row(range.first),
                      queries.row(range.first) + range.count * kWidth);
        }
      };
      rig.on_layers_done = [&](int32_t first, int32_t last) {
        order.push_back(100 * (first + 1) + last);
      };
      return rig.Step(feeds);
    };
    EXPECT_EQ(listen(many, of_many), want);
    EXPECT_EQ(order, (std::vector<int32_t>{0, 101, 1, 202}));
    listen(one, of_one);
    ASSERT_EQ(of_many.size(), 2u);
    ASSERT_EQ(of_one.size(), 2u);
    EXPECT_EQ(of_many[0], of_one[0]);
    EXPECT_LT(Deviation(of_many[1], of_one[1]), kActivationDeviation / 2);
    EXPECT_GT(Deviation(of_many[0], of_one[1]), 2 * kActivationDeviation);
  }
}

// A layer's slots are copied within the step, whose other tokens do not notice; and the next token
// attends to what stayed, as on a CPU that reads the same pages.
TEST_P(ShardedEvictionTest, EvictsAPromptLayerByLayer) {
  constexpr int32_t kObserved = 32;
  ManyGpusRig many(weights_, GetParam(), KvDtype::kBf16, {.evicts = true});
  CpuRig cpu(weights_);
  const std::vector<Feed> feeds = {{0, Prompt(kTokens, 1), 0}};
  const std::vector<float> want = many.Step(feeds);
  const EvictionAttention attention = *many.runner().eviction_attention();
  EXPECT_EQ(attention.heads, kHeads);
  many.observed = {{.first = kTokens - kObserved, .count = kObserved}};
  many.on_queries = [&](int32_t layer, View<const float, 2> queries) {
    EvictLayer(*attention.evictor,
               {.keys = {.scoring = KeyScoring::kAttention,
                         .kv = many.kv(),
                         .layer = layer,
                         .blocks = many.Table(0),
                         .tokens = kTokens,
                         .queries = {queries.row(kTokens - kObserved), {kObserved, kWidth}},
                         .heads = attention.heads,
                         .scale = attention.scale,
                         .cap = attention.cap,
                         .scores = {}},
                .rule = {.keep = kKept, .last = kObserved, .pool = 9},
                .to = many.Table(1)});
  };
  EXPECT_EQ(many.Step(feeds), want);
  many.on_queries = nullptr;
  many.observed.clear();
  cpu.TakePages(many, 1);
  const Feed next{.sequence = 1, .tokens = {8}, .position = kTokens, .evicted = kTokens - kKept};
  const std::vector<float> got = many.Step({next});
  EXPECT_LT(Deviation(got, cpu.Step({next})), kActivationDeviation);
  EXPECT_GT(Deviation(got, many.Step({{0, {8}, kTokens}})), 1e-3) << "nothing was lost";
}

// A step that all GPUs refuse reports nothing, and keeps none of them from the next step.
TEST_P(ShardedEvictionTest, ARefusedStepHasNoQueries) {
  ManyGpusRig many(weights_, GetParam(), KvDtype::kBf16, {.evicts = true});
  int calls = 0;
  many.on_queries = [&](int32_t, View<const float, 2>) { ++calls; };
  const std::vector<uint32_t> beyond = {101};
  const SequenceStep bad{.tokens = beyond, .blocks = many.Table(0)};
  const StepArgs refused{.sequences = {&bad, 1}, .kv = many.kv(), .on_queries = many.on_queries};
  EXPECT_EQ(many.runner().Step(refused).code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(Message(many.runner().Step({.kv = many.kv(), .on_queries = many.on_queries})), "");
  EXPECT_EQ(calls, 0);
  many.Step({{0, {1, 2}, 0}});
  EXPECT_EQ(calls, 2);
}

INSTANTIATE_TEST_SUITE_P(Degrees, ShardedEvictionTest, testing::Values(2, 4));

TEST_F(ShardedEvictionTest, RefusesWhatOneGpuRefuses) {
  ModelConfig config = SmallConfig();
  config.sliding_window = {10, 0};
  const Weights windows = RandomWeights(config, 5, 0.2f);
  ManyGpusRig with_windows(windows, 2, KvDtype::kBf16, {.evicts = true});
  EXPECT_FALSE(with_windows.runner().eviction_attention().has_value());
  ManyGpusRig many(weights_, 2);
  EXPECT_FALSE(many.runner().eviction_attention().has_value());
  const std::vector<uint32_t> token = {1};
  const SequenceStep step{.tokens = token, .position = 4, .blocks = many.Table(0), .evicted = 2};
  EXPECT_EQ(many.runner().Step({.sequences = {&step, 1}, .kv = many.kv()}).code(),
            absl::StatusCode::kInvalidArgument);
}

// The exchange fails that is enqueued before the first layer's queries are reported.
TEST_F(ShardedEvictionTest, AGpuThatFailsInAnObservedStepEndsTheProcess) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  const auto fail_in_a_step = [&] {
    ManyGpusRig rig(weights_, 2, KvDtype::kBf16, {.evicts = true});
    rig.on_queries = [](int32_t, View<const float, 2>) {};
    const int64_t done = 2;  // the ranks' first exchange, when they opened
    void* fake = dlopen(FAKE_NCCL, RTLD_NOW);
    reinterpret_cast<FakeNcclInject*>(dlsym(fake, "fake_nccl_inject"))("error_at", done + 3);
    rig.Step({{0, {1, 2}, 0}});
  };
  EXPECT_DEATH(fail_in_a_step(), "remote process exited");
}

}  // namespace
}  // namespace penstock
