// A model on several emulated GPUs, beside one of them and the CPU. NCCL is a fake.

#include <dlfcn.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>

#include "model/forward/runner_check.h"
#include "model/sampler/token_draw.h"
#include "tests/contract/fake_nccl/fake_nccl.h"
#include "tests/cuda/emulator/emulated_stream.h"
#include "tests/cuda/runner/degrees_rig.h"
#include "tests/cuda/runner/rounded_weights.h"
#include "tests/support/environment.h"

namespace penstock {
namespace {

constexpr double kBf16Deviation = 2e-2;  // activations are bf16 on GPUs
constexpr double kMixtureDeviation = 2.5e-2;

ModelConfig FullConfig() {
  ModelConfig config = SmallConfig();
  config.tied_embeddings = config.qkv_bias = config.output_bias = config.mlp_bias = true;
  config.qk_norm = QkNorm::kHead;
  config.sliding_window = {10, 0};
  return config;
}

// Wide enough for products in several slices, on two GPUs too.
ModelConfig WideConfig() {
  ModelConfig config = SmallConfig();
  config.intermediate = 2048;
  config.output_bias = config.mlp_bias = true;
  return config;
}

// Norms of the outputs of attention and MLP, which are of the ranks' sum; sinks of each rank's
// heads; no gate, and a width that the ranks share unevenly.
ModelConfig OtherNormsConfig() {
  ModelConfig config = SmallConfig();
  config.output_bias = config.mlp_bias = true;
  config.names.attention_output_norm = "attention_output_norm";
  config.names.mlp_output_norm = "mlp_output_norm";
  config.attention_sinks = true;
  config.attention_cap = 3;
  config.residual_multiplier = 0.5f;
  return config;
}
ModelConfig ParallelConfig() {
  ModelConfig config = SmallConfig();
  config.qkv_bias = config.output_bias = config.mlp_bias = true;
  config.layer_norm = config.parallel_residual = true;
  config.names.gate = "";
  config.activation = Activation::kGelu;
  config.rope.rotary_dims = 16;
  return config;
}

// DeepSeek's latents, which all GPUs have, with queries of the input or of a latent of their own;
// on four GPUs, each has three heads.
ModelConfig LatentConfig(int32_t query_rank) {
  ModelConfig config = SmallConfig();
  config.heads = 12;
  config.kv_heads = 1;
  config.latent = {
      .rank = 512, .query_rank = query_rank, .plain_dims = 24, .rope_dims = 64, .value_dims = 32};
  config.head_dim = config.latent.rank + config.latent.rope_dims;
  config.rope.rotary_dims = config.latent.rope_dims;
  return config;
}

// A model, and a format of its pages.
struct PagesCase {
  const Weights& weights;
  KvDtype dtype = KvDtype::kBf16;
};

// All with two GPUs, one that has scales with more.
std::vector<KvDtype> FormatsFor(int ranks) {
  if (ranks > 2) return {KvDtype::kK8v4};
  return {std::begin(kKvDtypes), std::end(kKvDtypes)};
}

class TensorParallelTest : public testing::TestWithParam<int> {
 protected:
  const ScopedEnvironment gpus_{"PENSTOCK_EMULATED_GPUS", "4"};
};

// As near to the CPU as one GPU is: what the parts of a sum add is rounding in f32 alone.
void CompareWithOthers(const Weights& weights, int ranks, double limit = kBf16Deviation) {
  ManyGpusRig many(weights, ranks);
  OneGpuRig one(weights);
  CpuRig cpu(weights);
  const auto step = [&](const std::vector<Feed>& feeds) {
    const std::vector<float> want = cpu.Step(feeds), got = many.Step(feeds);
    EXPECT_LT(Deviation(got, want), limit);
    EXPECT_LT(Deviation(got, one.Step(feeds)), limit / 2);
  };
  step({{0, Prompt(21, 1), 0}, {1, Prompt(5, 2), 0, false}});
  step({{2, Prompt(9, 3), 0}, {0, {7}, 21}, {1, {9, 11}, 5}});
  step({{1, {3}, 7}, {2, {5}, 9, false}, {0, {13}, 22}});
}
void CompareWithOthers(const ModelConfig& config, int ranks) {
  CompareWithOthers(RandomWeights(config, 5, 0.2f), ranks);
}

// Like a golden checkpoint, for up to four GPUs.
ModelConfig SmallMixture(const std::string& family) {
  ModelConfig config = *LoadModelConfig(SourceFolder() + "/tests/golden/logits/" + family);
  config.head_dim = 64;
  if (config.rope.rotary_dims != 0) config.rope.rotary_dims = 24;
  return SmallModelLike(config, 4);
}

TEST_P(TensorParallelTest, AgreesWithOneGpuAndTheCpu) {
  CompareWithOthers(SmallConfig(), GetParam());
}
TEST_P(TensorParallelTest, TakesEveryVariantOfTheFamily) {
  CompareWithOthers(FullConfig(), GetParam());
}
TEST_P(TensorParallelTest, TakesOtherFamilies) {
  CompareWithOthers(OtherNormsConfig(), GetParam());
  CompareWithOthers(ParallelConfig(), GetParam());
}
TEST_P(TensorParallelTest, AddsProductsOfSeveralSlices) {
  CompareWithOthers(WideConfig(), GetParam());
}

// With and without an expert that all tokens use, a gate of it, biases; the last GPUs have fewer
// values of an expert than the others.
TEST_P(TensorParallelTest, DividesEveryExpert) {
  for (const char* family : {"mixtral", "qwen2_moe", "glm4_moe", "gpt_oss"}) {
    SCOPED_TRACE(family);
    ModelConfig config = SmallMixture(family);
    config.experts.intermediate = 40;
    if (config.experts.shared_intermediate != 0) config.experts.shared_intermediate = 24;
    Weights weights = RandomWeights(config, 5, 0.1f);
    MakeChoicesClear(weights);
    CompareWithOthers(weights, GetParam(), kMixtureDeviation);
  }
}

// Each GPU has 96 inputs, so that all but the first begin in the middle of a group of 128.
TEST_P(TensorParallelTest, KeepsCodesWhereAGroupIsDivided) {
  const QuantisedFormat formats[] = {
      {.bits = 4, .group = 128},
      {.bits = 8, .group = 64},
      {.code = CodeType::kE2m1, .bits = 4, .group = 32, .scale = ScaleType::kBf16}};
  const auto device = *cuda::CudaDevice::Open(0);
  for (const QuantisedFormat& format : formats) {
    for (const char* family : {"llama_linear", "qwen2_moe"}) {
      SCOPED_TRACE(testing::Message() << format.Name() << " " << family);
      ModelConfig config = SmallMixture(family);
      config.intermediate = config.experts.intermediate = 96 * GetParam();
      if (config.experts.count != 0) config.experts.shared_intermediate = 32 * GetParam();
      const auto weights_of = [&] {
        Weights weights = RandomWeights(config, 5, 0.2f, {.layers = format});
        MakeChoicesClear(weights);
        return weights;
      };
      const Weights codes = weights_of();
      Weights bf16 = weights_of();
      for (LayerWeights& layer : bf16.layers) {
        layer.experts.has_value() ? RoundToBf16(*layer.experts) : RoundToBf16(layer);
      }
      device->Select();
      for (int rank = 0; rank < GetParam(); ++rank) {
        const auto there = *CudaWeights::Upload(codes, {.rank = rank, .ranks = GetParam()},
                                                cuda::InputOrder::kOwn, 1, device->stream());
        EXPECT_TRUE(there->layers.back().down.weight.quantised()) << rank;
        if (config.experts.count != 0) {
          EXPECT_TRUE(there->layers.back().experts->down.weight.quantised()) << rank;
        }
      }
      ManyGpusRig in_codes(codes, GetParam()), in_bf16(bf16, GetParam());
      const std::vector<Feed> feeds = {{0, Prompt(21, 1), 0}, {1, Prompt(5, 2), 0}};
      EXPECT_EQ(in_codes.Step(feeds), in_bf16.Step(feeds));
    }
  }
}

// The first layer's keys and values come of the same arithmetic.
void ComparePages(const PagesCase& c, int ranks) {
  ManyGpusRig many(c.weights, ranks, c.dtype);
  OneGpuRig one(c.weights, c.dtype);
  many.Step({{0, Prompt(37, 8), 0}});
  one.Step({{0, Prompt(37, 8), 0}});
  const std::vector<std::byte> got = many.Pages(0), want = one.Pages(0);
  const size_t page = one.kv().layout.PayloadBytes(), layer = one.kv().layout.LayerBytes();
  for (size_t at = 0; at < want.size(); at += page) {
    const auto from = want.begin() + static_cast<ptrdiff_t>(at);
    EXPECT_TRUE(std::equal(from, from + static_cast<ptrdiff_t>(layer),
                           got.begin() + static_cast<ptrdiff_t>(at)))
        << KvDtypeName(c.dtype) << " " << at / page;
  }
}

TEST_P(TensorParallelTest, PagesAreThoseOfOneGpu) {
  const Weights weights = RandomWeights(FullConfig(), 3, 0.2f);
  for (const KvDtype dtype : FormatsFor(GetParam())) ComparePages({weights, dtype}, GetParam());
  ComparePages({RandomWeights(LatentConfig(0), 3, 0.2f)}, GetParam());
}

// Several GPUs compute a prompt, and one GPU or the CPU continues it; and the other way round.
void ServeOtherDegrees(const PagesCase& c, int ranks) {
  const std::vector<Feed> prompt = {{0, Prompt(35, 8), 0}}, next = {{0, {4}, 35}};
  ManyGpusRig many(c.weights, ranks, c.dtype), again(c.weights, ranks, c.dtype);
  OneGpuRig one(c.weights, c.dtype);
  CpuRig cpu(c.weights, c.dtype);
  many.Step(prompt);
  cpu.TakePages(many, 0);
  one.TakePages(many, 0);
  again.TakePages(one, 0);
  const std::vector<float> want = many.Step(next);
  EXPECT_LT(Deviation(cpu.Step(next), want), kBf16Deviation) << KvDtypeName(c.dtype);
  EXPECT_LT(Deviation(one.Step(next), want), kBf16Deviation / 2) << KvDtypeName(c.dtype);
  EXPECT_EQ(again.Step(next), want) << KvDtypeName(c.dtype);
}

TEST_P(TensorParallelTest, PagesServeOtherDegrees) {
  const Weights weights = RandomWeights(SmallConfig(), 3, 0.2f);
  for (const KvDtype dtype : FormatsFor(GetParam())) {
    ServeOtherDegrees({weights, dtype}, GetParam());
  }
  ServeOtherDegrees({RandomWeights(LatentConfig(40), 3, 0.2f)}, GetParam());
}

// With queries of the input, and of a latent; the second model has groups of experts behind a dense
// layer, and an expert that all tokens use.
TEST_P(TensorParallelTest, DividesTheHeadsOfLatents) {
  CompareWithOthers(LatentConfig(0), GetParam());
  const ModelConfig latents = LatentConfig(40);
  ModelConfig config = SmallMixture("deepseek_v3");
  config.hidden = latents.hidden;
  config.heads = latents.heads;
  config.latent = latents.latent;
  config.head_dim = latents.head_dim;
  config.rope.rotary_dims = latents.rope.rotary_dims;
  config.experts.intermediate = 40;
  config.experts.shared_intermediate = 24;
  config.experts.dense = {true, false};
  Weights weights = RandomWeights(config, 5, 0.1f);
  MakeChoicesClear(weights);
  CompareWithOthers(weights, GetParam(), kMixtureDeviation);
}

// In all layers, also where chunks and neighbours differ.
TEST_P(TensorParallelTest, EveryGpuHasTheSameLatents) {
  const Weights weights = RandomWeights(LatentConfig(40), 3, 0.2f);
  ManyGpusRig many(weights, GetParam());
  many.Step({{0, Prompt(21, 1), 0}, {1, Prompt(5, 2), 0, false}});
  many.Step({{0, {7}, 21}});
  const std::vector<std::byte> first = many.PagesOf(0, 0);
  EXPECT_EQ(first, many.Pages(0));
  for (int rank = 1; rank < GetParam(); ++rank) EXPECT_EQ(many.PagesOf(rank, 0), first) << rank;
  // What another worker wrote is what every GPU reads.
  ManyGpusRig other(weights, GetParam());
  other.TakePages(many, 0);
  for (int rank = 0; rank < GetParam(); ++rank) EXPECT_EQ(other.PagesOf(rank, 0), first) << rank;
}

// The matrix with zeros for all but some inputs.
WeightMatrix KeepInputs(const WeightMatrix& matrix, int64_t first, int64_t count) {
  PackedMatrix kept(matrix.outputs(), matrix.inputs());
  std::vector<float> values(static_cast<size_t>(matrix.inputs()));
  for (int64_t output = 0; output < matrix.outputs(); ++output) {
    matrix.GetRow(output, values.data());
    std::vector<Bf16> row(values.size());
    std::transform(values.begin() + first, values.begin() + first + count, row.begin() + first,
                   ToBf16);
    kept.SetRow(output, row.data());
  }
  return WeightMatrix(std::move(kept));
}

// A model in which the heads of one rank alone add something to the residual.
Weights WithHeadsOf(int rank, int ranks) {
  Weights weights = RandomWeights(LatentConfig(40), 3, 0.2f);
  const ModelShard shard{.rank = rank, .ranks = ranks};
  const int64_t width = shard.Of(weights.config).AttentionWidth();
  for (LayerWeights& layer : weights.layers) {
    layer.attention_output = KeepInputs(layer.attention_output, rank * width, width);
    layer.down = KeepInputs(layer.down, 0, 0);
  }
  return weights;
}

// Workers refuse these by name, by what the runner says here.
TEST_P(TensorParallelTest, LatentsAreNeitherEvictedNorSelected) {
  const CudaRunner::Options both{.evicts = true, .selects = true};
  const Weights of_heads = RandomWeights(SmallConfig(), 3, 0.2f);
  ManyGpusRig heads(of_heads, GetParam(), KvDtype::kBf16, both);
  EXPECT_TRUE(heads.runner().eviction_attention().has_value());
  EXPECT_TRUE(heads.runner().selects_pages());
  const Weights weights = RandomWeights(LatentConfig(0), 3, 0.2f);
  ManyGpusRig latents(weights, GetParam(), KvDtype::kBf16, both);
  EXPECT_FALSE(latents.runner().eviction_attention().has_value());
  EXPECT_FALSE(latents.runner().selects_pages());
  ManyGpusRig plain(weights, GetParam());
  const std::vector<Feed> prompt = {{0, Prompt(21, 1), 0}};
  EXPECT_EQ(latents.Step(prompt), plain.Step(prompt));
}

// A head's bits do not depend on the heads beside it. No sum over GPUs is rounded here.
TEST_P(TensorParallelTest, HeadsOfLatentsHaveTheBitsOfOneGpu) {
  const Weights weights = WithHeadsOf(GetParam() - 1, GetParam());
  ManyGpusRig many(weights, GetParam());
  OneGpuRig one(weights);
  const std::vector<Feed> prompt = {{0, Prompt(37, 8), 0}}, next = {{0, {4}, 37}};
  EXPECT_EQ(many.Step(prompt), one.Step(prompt));
  EXPECT_EQ(many.Step(next), one.Step(next));
  EXPECT_EQ(many.Pages(0), one.Pages(0));
}

void ExpectTheSameInAnyCompany(const Weights& weights, int ranks) {
  ManyGpusRig whole(weights, ranks), chunks(weights, ranks);
  const std::vector<uint32_t> prompt = Prompt(70, 6);  // more rows than a product takes at once
  const std::vector<float> want = whole.Step({{0, prompt, 0}});
  EXPECT_EQ(whole.Step({{2, prompt, 0}}), want);
  const auto part = [&](int from, int to) {
    return std::vector<uint32_t>(prompt.begin() + from, prompt.begin() + to);
  };
  chunks.Step({{1, Prompt(11, 4), 0}, {0, part(0, 27), 0, false}});
  chunks.Step({{0, part(27, 28), 27, false}});
  const std::vector<float> got = chunks.Step({{2, {1}, 0}, {0, part(28, 70), 28}, {1, {2}, 11}});
  EXPECT_TRUE(std::equal(want.begin(), want.end(), got.begin() + weights.config.vocab));
  EXPECT_EQ(chunks.Pages(0), whole.Pages(0));
}

TEST_P(TensorParallelTest, NeitherNeighboursNorChunksNorTimesChangeABit) {
  ExpectTheSameInAnyCompany(RandomWeights(WideConfig(), 7, 0.2f), GetParam());
  ExpectTheSameInAnyCompany(RandomWeights(LatentConfig(40), 7, 0.2f), GetParam());
}

TEST_P(TensorParallelTest, TellsOfLayersThatAllHaveInOrder) {
  const Weights weights = RandomWeights(SmallConfig(), 5, 0.2f);
  ManyGpusRig rig(weights, GetParam());
  std::vector<int32_t> layers;
  std::vector<std::byte> told;  // what the layers' pages held then
  const size_t layer = rig.kv().layout.LayerBytes();
  const auto page_of = [&](size_t offset, size_t bytes) {
    std::vector<std::byte> page(bytes);
    ReadPages(rig.kv(), rig.Table(0).first(1), offset, bytes, page.data());
    return page;
  };
  rig.on_layers_done = [&](int32_t first, int32_t last) {
    layers.push_back(first);
    layers.push_back(last);
    const auto page = page_of(static_cast<size_t>(first) * layer, layer);
    told.insert(told.end(), page.begin(), page.end());
  };
  rig.Step({{0, Prompt(16, 1), 0, false}});
  EXPECT_EQ(layers, (std::vector<int32_t>{0, 1, 1, 2}));
  EXPECT_EQ(told, page_of(0, 2 * layer));
  EXPECT_EQ(std::count(told.begin(), told.end(), std::byte{0}) < 100, true);
}

// What NCCL forbids, such as a call that not all ranks capture.
std::string NcclViolations() {
  void* fake = dlopen(FAKE_NCCL, RTLD_NOW);
  return reinterpret_cast<FakeNcclViolations*>(dlsym(fake, "fake_nccl_violations"))();
}

// Prompts, decode steps of growing batches, whose logits move on the first GPU alone, and steps of
// the same shapes again.
void CompareGraphs(ManyGpusRig& graphed, ManyGpusRig& plain) {
  const auto step = [&](const std::vector<Feed>& feeds) {
    EXPECT_EQ(graphed.Step(feeds), plain.Step(feeds));
  };
  step({{0, Prompt(5, 1), 0}});
  for (int32_t i = 0; i < 3; ++i) step({{0, {7}, 5 + i}});
  step({{1, Prompt(9, 2), 0}, {2, Prompt(4, 3), 0}});
  for (int32_t i = 0; i < 4; ++i) step({{0, {3}, 8 + i}, {1, {5}, 9 + i}, {2, {11}, 4 + i}});
  step({{0, {2}, 12}});
  for (int sequence = 0; sequence < 3; ++sequence) {
    EXPECT_EQ(graphed.Pages(sequence), plain.Pages(sequence)) << sequence;
  }
}

TEST_P(TensorParallelTest, GraphsChangeNoBit) {
  const Weights weights = RandomWeights(SmallConfig(), 5, 0.2f);
  ManyGpusRig graphed(weights, GetParam());
  ManyGpusRig plain(weights, GetParam(), KvDtype::kBf16, {.graphs_max = 0});
  CompareGraphs(graphed, plain);
  EXPECT_GE(graphed.graphs().launches(), 4);
  EXPECT_EQ(plain.graphs().size(), 0);
  EXPECT_EQ(NcclViolations(), "");
}

TEST_P(TensorParallelTest, GraphsChangeNoBitOfLatents) {
  const Weights weights = RandomWeights(LatentConfig(40), 5, 0.2f);
  ManyGpusRig graphed(weights, GetParam());
  ManyGpusRig plain(weights, GetParam(), KvDtype::kBf16, {.graphs_max = 0});
  CompareGraphs(graphed, plain);
  EXPECT_GE(graphed.graphs().launches(), 4);
  EXPECT_EQ(NcclViolations(), "");
  for (int rank = 1; rank < GetParam(); ++rank) {
    EXPECT_EQ(graphed.PagesOf(rank, 0), graphed.PagesOf(0, 0)) << rank;
  }
}

TEST_P(TensorParallelTest, WhereOneGpuHasNoGraphNoneUsesIts) {
  const Weights weights = RandomWeights(SmallConfig(), 5, 0.2f);
  ManyGpusRig graphed(weights, GetParam());
  ManyGpusRig plain(weights, GetParam(), KvDtype::kBf16, {.graphs_max = 0});
  cuda::emulator::RefuseNextGraph();
  CompareGraphs(graphed, plain);
  EXPECT_EQ(graphed.graphs().launches(), 0);
  EXPECT_EQ(NcclViolations(), "");
}

TEST_P(TensorParallelTest, LeavesTheCallerFree) {
  const Weights weights = RandomWeights(SmallConfig(), 5, 0.2f);
  ManyGpusRig rig(weights, GetParam());
  ASSERT_TRUE(rig.runner().runs_beside_caller());
  std::string order;
  rig.meanwhile = [&] { order += 'm'; };
  rig.on_layers_done = [&](int32_t, int32_t) { order += 'l'; };
  rig.Step({{0, Prompt(5, 1), 0}});
  EXPECT_EQ(order, "mll");
}

// A refused step names its error, and the next step is computed.
TEST_P(TensorParallelTest, RefusesWhatOneGpuRefuses) {
  const Weights weights = RandomWeights(SmallConfig(), 5, 0.2f);
  ManyGpusRig rig(weights, GetParam());
  const std::vector<uint32_t> beyond = {101};
  const SequenceStep bad{.tokens = beyond, .blocks = rig.Table(0)};
  const absl::Status token = rig.runner().Step({.sequences = {&bad, 1}, .kv = rig.kv()});
  EXPECT_EQ(token.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_NE(Message(token).find("token 101"), std::string::npos);
  EXPECT_EQ(Message(rig.runner().Step({.kv = rig.kv()})), "");
  EXPECT_EQ(rig.Step({{0, {1, 2}, 0}}), rig.Step({{1, {1, 2}, 0}}));
}

// By the first GPU, from logits that it alone has.
TEST_P(TensorParallelTest, DrawsWhatTheLogitsSay) {
  const Weights weights = RandomWeights(FullConfig(), 5, 0.2f);
  ManyGpusRig rig(weights, GetParam());
  const std::vector<float> logits = rig.Step({{0, Prompt(9, 1), 0}});
  const std::vector<uint32_t> prompt = Prompt(9, 1);
  const DrawSpec draws[] = {{.temperature = 0}, {.temperature = 1.5f, .random = 77}};
  const SequenceStep step{.tokens = prompt, .blocks = rig.Table(1), .draws = draws};
  DrawnToken drawn[2];
  ASSERT_EQ(Message(rig.runner().Step({.sequences = {&step, 1}, .kv = rig.kv(), .drawn = drawn})),
            "");
  for (size_t i = 0; i < 2; ++i) {
    std::vector<float> own = logits;
    EXPECT_EQ(drawn[i].id, DrawToken(own, draws[i])) << i;
  }
}

INSTANTIATE_TEST_SUITE_P(Degrees, TensorParallelTest, testing::Values(2, 4));

// The others wait for it on their GPUs, from where nobody can call them back.
TEST_F(TensorParallelTest, AGpuThatFailsEndsTheProcess) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  const Weights weights = RandomWeights(SmallConfig(), 5, 0.2f);
  const auto fail_in_a_step = [&] {
    ManyGpusRig rig(weights, 2);
    const int64_t done = 2;  // the ranks' first exchange, when they opened
    void* fake = dlopen(FAKE_NCCL, RTLD_NOW);
    reinterpret_cast<FakeNcclInject*>(dlsym(fake, "fake_nccl_inject"))("error_at", done + 3);
    rig.Step({{0, {1, 2}, 0}});
  };
  EXPECT_DEATH(fail_in_a_step(), "remote process exited");
}

// The ranks are connected by then, and let go.
TEST_F(TensorParallelTest, WhatTheKernelsDoNotTakeIsRefused) {
  ModelConfig config = SmallConfig();
  config.head_dim = 32;
  const Weights weights = RandomWeights(config, 1);
  const auto first = *cuda::CudaDevice::Open(0), second = *cuda::CudaDevice::Open(1);
  const auto links = *NcclRanks::Create(*NcclLibrary::Load(FAKE_NCCL), 2, {});
  const absl::Status status =
      TensorParallelRunner::Create(weights, {first.get(), second.get()}, *links, {}).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_NE(Message(status).find("head_dim is 32"), std::string::npos) << status.message();
  EXPECT_FALSE(links->Look(0).ok());
}

TEST_F(TensorParallelTest, HeadsThatCannotBeSharedAreRefused) {
  ModelConfig config = SmallConfig();
  config.kv_heads = 2;
  const Weights weights = RandomWeights(config, 1);
  const auto links = *NcclRanks::Create(*NcclLibrary::Load(FAKE_NCCL), 4, {});
  std::vector<cuda::CudaDevice*> devices(4);
  const absl::Status status = TensorParallelRunner::Create(weights, devices, *links, {}).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_NE(Message(status).find("tensor_parallel is 4"), std::string::npos) << status.message();
  EXPECT_NE(Message(status).find("2 KV heads"), std::string::npos) << status.message();
}

// Of latents the heads of queries are divided.
TEST_F(TensorParallelTest, HeadsOfLatentsThatCannotBeSharedAreRefused) {
  ModelConfig config = LatentConfig(0);
  EXPECT_EQ(Message(CheckShards(config, 4)), "");
  config.heads = 6;
  EXPECT_EQ(Message(CheckShards(config, 2)), "");
  EXPECT_NE(Message(CheckShards(config, 4)).find("6 attention heads"), std::string::npos);
}

}  // namespace
}  // namespace penstock
