// numerics=fast on the emulated GPU: rows of prompts by the library's attention, which the host
// computes here (emulator/emulated_prefill.cc), and rows of answers by ours.

#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <utility>

#include "model/cuda/cuda_runner.h"
#include "model/cuda/prompts/fast_check.h"
#include "model/forward/runner_check.h"
#include "model/forward/transformer_runner.h"
#include "tests/cuda/runner/runner_rig.h"
#include "tests/support/environment.h"

namespace penstock {
namespace {

using Logits = std::vector<float>;
using Tokens = std::vector<uint32_t>;

constexpr int32_t kPromptTokens = 230;  // three tiles of keys, and two of rows

ModelConfig ConfigOf(int32_t head_dim, std::vector<int32_t> windows = {}) {
  ModelConfig config = TinyConfig();
  config.head_dim = head_dim;
  config.max_position = 400;
  config.sliding_window = std::move(windows);
  return config;
}

Tokens Part(const Tokens& tokens, int begin, int count) {
  return {tokens.begin() + begin, tokens.begin() + begin + count};
}

Rig::Feed PromptFeed(int sequence, Tokens tokens, int32_t position, bool wants_logits = true) {
  return {.sequence = sequence,
          .tokens = std::move(tokens),
          .position = position,
          .wants_logits = wants_logits,
          .prompt = true};
}

class FastNumericsTest : public testing::Test {
 protected:
  struct Model {
    explicit Model(const ModelConfig& config)
        : weights(RandomWeights(config, 5, 0.2f)), device(*cuda::CudaDevice::Open(0)) {
      fast = *CudaRunner::Create(weights, *device, {.fast_prompts = true});
      exact = *CudaRunner::Create(weights, *device, {});
    }
    Weights weights;
    std::unique_ptr<cuda::CudaDevice> device;
    std::unique_ptr<CudaRunner> fast, exact;
  };

  const ScopedEnvironment hopper_{"PENSTOCK_EMULATED_HOPPER", "1"};
};

// The prompt's last logits if it comes in chunks of these sizes, of which the last one repeats,
// beside answers and other prompts.
Logits InChunks(Rig& rig, const Tokens& prompt, const std::vector<int>& chunks, bool others) {
  Logits last;
  size_t next = 0;
  int32_t steps = 0;
  for (int begin = 0; begin < kPromptTokens;) {
    const int count = std::min(chunks[std::min(next++, chunks.size() - 1)], kPromptTokens - begin);
    std::vector<Rig::Feed> feeds;
    if (others) {
      // Behind a prompt of 5 tokens, its answer's.
      feeds.push_back(steps == 0 ? PromptFeed(1, Prompt(5, 7), 0, false)
                                 : Rig::Feed{1, {static_cast<uint32_t>(steps)}, 4 + steps, false});
    }
    feeds.push_back(PromptFeed(0, Part(prompt, begin, count), begin));
    if (others) feeds.push_back(PromptFeed(2, Prompt(1 + steps % 3, 9), 0, false));
    last = rig.Step(feeds);
    begin += count;
    ++steps;
  }
  return last;
}

TEST_F(FastNumericsTest, ChunksAndBatchesDoNotChangeABit) {
  const Tokens prompt = Prompt(kPromptTokens, 1);
  for (const auto& [head_dim, windows] :
       {std::pair{64, std::vector<int32_t>{}}, {128, {}}, {64, {100, 0}}, {128, {20, 110}}}) {
    const Model model(ConfigOf(head_dim, windows));
    Rig whole(*model.fast, 3);
    const Logits want = whole.Step({PromptFeed(0, prompt, 0)});
    const Logits next = whole.Step({{0, {42}, kPromptTokens}});
    for (const std::vector<int>& chunks :
         {std::vector{100, 1, 1, 128}, {97, 96}, {16, 199, 1}, {229}}) {
      for (const bool others : {false, true}) {
        Rig rig(*model.fast, 3);
        EXPECT_EQ(InChunks(rig, prompt, chunks, others), want) << head_dim << " " << chunks[0];
        EXPECT_EQ(rig.Step({{0, {42}, kPromptTokens}}), next);
      }
    }
  }
}

void CopyPages(const Rig& from, const Rig& to) {
  ASSERT_EQ(from.memory.bytes(), to.memory.bytes());
  std::memcpy(to.memory.as<void>(), from.memory.as<void>(), from.memory.bytes());
}

TEST_F(FastNumericsTest, PromptsAreTheLibrarysAndAnswersOurs) {
  const Tokens prompt = Prompt(kPromptTokens, 1);
  const Model model(ConfigOf(64, {100, 0}));
  Rig fast(*model.fast, 2), exact(*model.exact, 2);
  TransformerRunner cpu_runner(model.weights, {}, 512);
  Rig cpu(cpu_runner, 2);
  const Logits of_fast = fast.Step({PromptFeed(0, prompt, 0)});
  const Logits of_exact = exact.Step({PromptFeed(0, prompt, 0)});
  EXPECT_NE(of_fast, of_exact);
  EXPECT_LT(Deviation(of_fast, cpu.Step({PromptFeed(0, prompt, 0)})), 2e-2);
  // From the same pages, an answer's rows have the same bits, alone and beside a prompt.
  CopyPages(fast, exact);
  const std::vector<Rig::Feed> answer = {{0, {42}, kPromptTokens}};
  const Logits ours = exact.Step(answer);
  EXPECT_EQ(fast.Step(answer), ours);
  EXPECT_EQ(fast.Step({answer[0], PromptFeed(1, prompt, 0, false)}), ours);
  // The same row as the last one of a prompt is the library's.
  EXPECT_NE(fast.Step({PromptFeed(0, {42}, kPromptTokens)}), ours);
}

// The number of rows says nothing.
TEST_F(FastNumericsTest, RowsThatAreNoPromptsAreThoseOfExact) {
  const Model model(ConfigOf(128));
  Rig fast(*model.fast, 2), exact(*model.exact, 2);
  for (const auto& [tokens, position] :
       {std::pair{Prompt(kPromptTokens, 1), 0}, {Prompt(1, 2), kPromptTokens}}) {
    const std::vector<Rig::Feed> feeds = {{0, tokens, position},
                                          {1, {5, 6, 7}, position == 0 ? 0 : 3}};
    EXPECT_EQ(fast.Step(feeds), exact.Step(feeds));
  }
}

// Steps of single tokens are graphs, also those of a fast runner, unless one is of a prompt.
TEST_F(FastNumericsTest, AnswersAreGraphs) {
  const Model model(ConfigOf(64));
  Rig rig(*model.fast, 1);
  rig.Step({PromptFeed(0, Prompt(20, 1), 0)});
  for (int32_t i = 0; i < 4; ++i) rig.Step({{0, {7}, 20 + i}});
  const int64_t launches = model.fast->graphs().launches();
  EXPECT_GT(launches, 0);
  for (int32_t i = 0; i < 4; ++i) rig.Step({PromptFeed(0, {7}, 24 + i)});
  EXPECT_EQ(model.fast->graphs().launches(), launches);
}

TEST_F(FastNumericsTest, TakesPagesOfBf16Only) {
  const Model model(ConfigOf(64));
  Rig rig(*model.fast, 1, KvDtype::kI8);
  const Tokens tokens = {1};
  const SequenceStep step{.tokens = tokens, .blocks = rig.tables[0], .prompt = true};
  const absl::Status status =
      model.fast->Step({.sequences = {&step, 1}, .kv = rig.kv, .logits = {}});
  EXPECT_NE(Message(status).find("numerics is fast, and kv_format is i8"), std::string::npos)
      << status;
}

TEST_F(FastNumericsTest, NamesWhatTheLibraryLacks) {
  const cuda::DeviceInfo hopper{.compute_major = 9};
  const auto refusal = [&](const ModelConfig& config) {
    const absl::Status status = CheckFastPrompts(config, hopper);
    return Message(status);
  };
  ModelConfig config = ConfigOf(64);
  EXPECT_EQ(refusal(config), "");
  config.head_dim = 80;
  EXPECT_NE(refusal(config).find("heads of other than 64 or 128"), std::string::npos);
  config = ConfigOf(64);
  config.latent.rank = 512;
  EXPECT_NE(refusal(config).find("latent attention"), std::string::npos);
  config = ConfigOf(64);
  config.attention_cap = 20;
  EXPECT_NE(refusal(config).find("a soft cap"), std::string::npos);
  config = ConfigOf(64);
  config.attention_sinks = true;
  EXPECT_NE(refusal(config).find("attention sinks"), std::string::npos);
}

TEST_F(FastNumericsTest, TheCheckIsOfTheModelsWindows) {
  const auto windows = [](std::vector<int32_t> sizes) {
    const cuda::library::PrefillModel model = PrefillModelOf(ConfigOf(64, std::move(sizes)), 16);
    return std::pair(model.full, model.window);
  };
  EXPECT_EQ(windows({}), std::pair(true, false));
  EXPECT_EQ(windows({0, 0}), std::pair(true, false));
  EXPECT_EQ(windows({9, 0}), std::pair(true, true));
  EXPECT_EQ(windows({9, 9}), std::pair(false, true));
}

}  // namespace
}  // namespace penstock
