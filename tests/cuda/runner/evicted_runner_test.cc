// Evictions in the forward pass of the CUDA backend, on the emulated device: sequences of which
// positions were evicted, and the queries of a step.

#include <gtest/gtest.h>

#include <algorithm>

#include "kernels/eviction/kv_evictor.h"
#include "model/cuda/cuda_runner.h"
#include "model/forward/runner_check.h"
#include "model/forward/transformer_runner.h"
#include "tests/cuda/runner/runner_rig.h"
#include "tests/support/environment.h"

namespace penstock {
namespace {

constexpr double kBf16Deviation = 2e-2;  // activations are bf16 on a GPU
constexpr int32_t kPromptTokens = 60, kEvicted = 50;

struct Runners {
  explicit Runners(const ModelConfig& config = TinyConfig())
      : weights(RandomWeights(config, 5, 0.2f)) {}

  const Weights weights;
  const std::unique_ptr<cuda::CudaDevice> device = *cuda::CudaDevice::Open(0);
  const std::unique_ptr<CudaRunner> gpu = *CudaRunner::Create(weights, *device, {.evicts = true});
  TransformerRunner cpu{weights, {}, 512};
};

Rig::Feed Next(std::vector<uint32_t> tokens, int32_t evicted, int32_t slot = kPromptTokens) {
  return {
      .sequence = 0, .tokens = std::move(tokens), .position = slot + evicted, .evicted = evicted};
}

TEST(CudaRunnerEvictions, PositionsAreNotSlots) {
  Runners runners;
  Rig gpu(*runners.gpu, 2), cpu(runners.cpu, 2);
  for (Rig* rig : {&gpu, &cpu}) rig->Step({{0, Prompt(kPromptTokens, 1), 0}});
  // One token, several, and one beside a sequence with all its positions.
  for (const std::vector<uint32_t>& tokens : {std::vector<uint32_t>{7}, {7, 9, 11}}) {
    const std::vector<float> got = gpu.Step({Next(tokens, kEvicted)});
    EXPECT_LT(Deviation(got, cpu.Step({Next(tokens, kEvicted)})), kBf16Deviation);
    const std::vector<Rig::Feed> both = {{1, Prompt(9, 3), 0}, Next(tokens, kEvicted)};
    const std::vector<float> beside = gpu.Step(both);
    EXPECT_TRUE(std::equal(got.begin(), got.end(), beside.end() - 101));
    EXPECT_GT(Deviation(got, cpu.Step({Next(tokens, 0)})), 2 * kBf16Deviation);
  }
}

TEST(CudaRunnerEvictions, ChunksAndGraphsChangeNoBit) {
  Runners runners;
  Rig rig(*runners.gpu, 1);
  const std::vector<uint32_t> prompt = Prompt(70, 4);
  rig.Step({{0, {prompt.begin(), prompt.begin() + 30}, 0}});
  const std::vector<float> whole = rig.Step({Next({prompt.begin() + 30, prompt.end()}, 20, 30)});
  rig.Step({Next({prompt.begin() + 30, prompt.begin() + 37}, 20, 30)});
  const std::vector<float> chunks = rig.Step({Next({prompt.begin() + 37, prompt.end()}, 20, 37)});
  EXPECT_EQ(whole, chunks);
  const std::vector<uint32_t> last(prompt.end() - 1, prompt.end());
  for (int i = 0; i < 3; ++i) EXPECT_EQ(rig.Step({Next(last, 20, 69)}), whole) << i;
  EXPECT_GT(runners.gpu->graphs().launches(), 0);
}

// Those of the rows that are asked for, of every layer, before layers are reported; and the step
// has the bits of one without.
TEST(CudaRunnerEvictions, GivesTheQueriesOfAStep) {
  Runners runners;
  Rig gpu(*runners.gpu, 2), cpu(runners.cpu, 2);
  const std::vector<Rig::Feed> feeds = {{1, Prompt(5, 2), 0}, {0, Prompt(40, 1), 0}};
  const std::vector<float> want = gpu.Step(feeds);
  constexpr int64_t kWidth = 4 * 64;
  std::vector<std::vector<float>> of_gpu, of_cpu;
  const std::vector<RowRange> observed = {{.first = 3, .count = 2}, {.first = 40, .count = 5}};
  std::vector<int32_t> order;  // layers whose queries came, and those reported from 100 on
  const auto take = [&](std::vector<std::vector<float>>& to) {
    return [&](int32_t layer, View<const float, 2> queries) {
      EXPECT_EQ(queries.dim(0), 45);
      order.push_back(layer);
      std::vector<float>& rows = to.emplace_back();
      for (const RowRange& range : observed) {
        for (int64_t row = range.first; row < range.first + range.count; ++row) {
          rows.insert(rows.end(), queries.row(row), queries.row(row) + kWidth);
        }
      }
    };
  };
  gpu.on_queries = take(of_gpu);
  gpu.observed = observed;
  gpu.on_layers_done = [&](int32_t first, int32_t last) { order.push_back(100 * first + last); };
  gpu.meanwhile = [&] { order.push_back(-1); };
  EXPECT_EQ(gpu.Step(feeds), want);
  EXPECT_EQ(order, (std::vector<int32_t>{-1, 0, 1, 1, 102}));
  cpu.on_queries = take(of_cpu);
  cpu.Step(feeds);
  ASSERT_EQ(of_gpu.size(), 2u);
  ASSERT_EQ(of_cpu.size(), 2u);
  for (size_t layer = 0; layer < 2; ++layer) {
    EXPECT_LT(Deviation(of_gpu[layer], of_cpu[layer]), kBf16Deviation) << layer;
  }
}

// A prompt of which every layer keeps some tokens, and a token behind it: near the CPU, whose
// runner reads what the GPU kept.
TEST(CudaRunnerEvictions, EvictsAPromptLayerByLayer) {
  for (const KvDtype dtype : {KvDtype::kBf16, KvDtype::kI4r}) {
    Runners runners;
    Rig gpu(*runners.gpu, 2, dtype), cpu(runners.cpu, 2, dtype);
    const EvictionAttention attention = *runners.gpu->eviction_attention();
    gpu.observed = {{.first = kPromptTokens - 32, .count = 32}};
    gpu.on_queries = [&](int32_t layer, View<const float, 2> queries) {
      EvictLayer(*attention.evictor,
                 {.keys = {.scoring = KeyScoring::kAttention,
                           .kv = gpu.kv,
                           .layer = layer,
                           .blocks = gpu.tables[0],
                           .tokens = kPromptTokens,
                           .queries = {queries.row(kPromptTokens - 32), {32, queries.dim(1)}},
                           .heads = attention.heads,
                           .scale = attention.scale,
                           .cap = attention.cap,
                           .scores = {}},
                  .rule = {.keep = kPromptTokens - 20, .last = 32, .pool = 9},
                  .to = gpu.tables[1]});
    };
    gpu.Step({{0, Prompt(kPromptTokens, 1), 0}});
    gpu.on_queries = nullptr;
    gpu.observed.clear();
    std::copy_n(gpu.memory.as<std::byte>(), gpu.memory.bytes(), cpu.memory.as<std::byte>());
    const Rig::Feed next{.sequence = 1, .tokens = {8}, .position = kPromptTokens, .evicted = 20};
    const std::vector<float> got = gpu.Step({next});
    EXPECT_LT(Deviation(got, cpu.Step({next})), kBf16Deviation) << KvDtypeName(dtype);
    const std::vector<float> exact = gpu.Step({{0, {8}, kPromptTokens}});
    EXPECT_GT(Deviation(got, exact), 1e-3) << "nothing was lost";
  }
}

TEST(CudaRunnerEvictions, RefusesWhereThereAreNone) {
  const Weights weights = RandomWeights(TinyConfig(), 5, 0.2f);
  const auto device = *cuda::CudaDevice::Open(0);
  const auto runner = *CudaRunner::Create(weights, *device, {});
  EXPECT_FALSE(runner->eviction_attention().has_value());
  Rig rig(*runner, 1);
  const std::vector<uint32_t> token = {1};
  const SequenceStep step{.tokens = token, .position = 4, .blocks = rig.tables[0], .evicted = 2};
  EXPECT_EQ(runner->Step({.sequences = {&step, 1}, .kv = rig.kv}).code(),
            absl::StatusCode::kInvalidArgument);
  ModelConfig config = TinyConfig();
  config.sliding_window = {10, 0};
  EXPECT_FALSE(Runners(config).gpu->eviction_attention().has_value());
  config.sliding_window = {0, 0};
  EXPECT_TRUE(Runners(config).gpu->eviction_attention().has_value());
  config.attention_sinks = true;
  EXPECT_FALSE(Runners(config).gpu->eviction_attention().has_value());
  const auto latents = LoadModelConfig(SourceFolder() + "/tests/golden/logits/deepseek_v3");
  ASSERT_TRUE(latents.ok()) << latents.status();
  ModelConfig real = SmallModelLike(*latents, 1);
  real.latent.rank = 512;  // the sizes of real latents
  real.latent.rope_dims = real.rope.rotary_dims = 64;
  real.head_dim = 512 + 64;
  const Weights small = RandomWeights(real, 1);
  const auto with_latents = CudaRunner::Create(small, *device, {.evicts = true});
  ASSERT_TRUE(with_latents.ok()) << with_latents.status();
  EXPECT_FALSE((*with_latents)->eviction_attention().has_value());
}

}  // namespace
}  // namespace penstock
