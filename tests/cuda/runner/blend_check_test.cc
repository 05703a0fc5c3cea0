// The check of blends when a worker starts, on an emulated GPU: with the right kernels for models
// of every kind, and with wrong ones.

#include "model/check/blend_check.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <memory>
#include <string>
#include <utility>

#include "kernels/buffer.h"
#include "kernels/cuda/cuda_pages.h"
#include "model/cuda/cuda_runner.h"
#include "model/forward/blended_rows.h"
#include "model/forward/transformer_runner.h"
#include "tests/support/environment.h"
#include "worker/model/gpu_host.h"

// The kernels, by other names: this file defines those that the runner calls.
#define MoveTokens RightMoveTokens
#define ReadValues RightReadValues
#define CompareValues RightCompareValues
#include "kernels/cuda/device/blend/blend_cuda.cu"
#undef MoveTokens
#undef ReadValues
#undef CompareValues

namespace penstock {
namespace {

// Wrong kernels of a blend; null: the right ones. Each may change its arguments, and is not
// launched if it returns false.
struct WrongKernels {
  std::string name;
  bool (*move)(cuda::MoveTokensParams& params, int& tokens) = nullptr;
  bool (*read)(cuda::ValuesParams& params, int& rows) = nullptr;
  bool (*compare)(cuda::ValuesParams& params, int& rows) = nullptr;
};
const WrongKernels* wrong = nullptr;

}  // namespace

namespace cuda {

void MoveTokens(const MoveTokensParams& params, int tokens, void* stream);
void ReadValues(const ValuesParams& params, int rows, void* stream);
void CompareValues(const ValuesParams& params, int rows, void* stream);

void MoveTokens(const MoveTokensParams& params, int tokens, void* stream) {
  MoveTokensParams changed = params;
  if (wrong != nullptr && wrong->move != nullptr && !wrong->move(changed, tokens)) return;
  RightMoveTokens(changed, tokens, stream);
}

void ReadValues(const ValuesParams& params, int rows, void* stream) {
  ValuesParams changed = params;
  if (wrong != nullptr && wrong->read != nullptr && !wrong->read(changed, rows)) return;
  RightReadValues(changed, rows, stream);
}

void CompareValues(const ValuesParams& params, int rows, void* stream) {
  ValuesParams changed = params;
  if (wrong != nullptr && wrong->compare != nullptr && !wrong->compare(changed, rows)) return;
  RightCompareValues(changed, rows, stream);
}

}  // namespace cuda

namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using Move = cuda::MoveTokensParams;
using Values = cuda::ValuesParams;

const WrongKernels kWrong[] = {
    {.name = "MovesNothing", .move = [](Move&, int&) { return false; }},
    {.name = "MovesOneTokenLess", .move = [](Move&, int& tokens) { return --tokens > 0; }},
    {.name = "MovesOneLayerLess", .move = [](Move& p, int&) { return --p.layers > 0; }},
    {.name = "MovesAllToTheFirstLayer",
     .move =
         [](Move& p, int&) {
           p.layer_stride = 0;
           return true;
         }},
    {.name = "MovesFromTheNextToken",
     .move =
         [](Move& p, int& tokens) {
           ++p.from;
           return --tokens > 0;
         }},
    {.name = "MovesToTheNextToken",
     .move =
         [](Move& p, int& tokens) {
           ++p.to;
           return --tokens > 0;
         }},
    {.name = "MovesBackwards",
     .move =
         [](Move& p, int&) {
           std::swap(p.from, p.to);
           return true;
         }},
    {.name = "MovesOneHead",
     .move =
         [](Move& p, int&) {
           p.kv.kv_heads = 1;
           return true;
         }},
    {.name = "RotatesNoKeys",
     .move =
         [](Move& p, int&) {
           p.turns[0].pairs = 0;
           return true;
         }},
    {.name = "TakesSinesForCosines",
     .move =
         [](Move& p, int&) {
           std::swap(p.turns[0].sines, p.turns[0].cosines);
           return true;
         }},
    {.name = "RotatesByTheElementBefore",
     .move =
         [](Move& p, int&) {
           p.turns[0].cosines -= 1;
           return true;
         }},
    {.name = "RotatesValues",
     .move =
         [](Move& p, int&) {
           std::swap(p.kv.keys, p.kv.values);
           return true;
         }},
    {.name = "KeepsNothing", .read = [](Values&, int&) { return false; }},
    {.name = "KeepsKeys",
     .read =
         [](Values& p, int&) {
           p.kv.values = p.kv.keys;
           return true;
         }},
    {.name = "KeepsTheNextRows",
     .read =
         [](Values& p, int& rows) {
           ++p.slots;
           return --rows > 0;
         }},
    {.name = "KeepsHalfOfTheRows", .read = [](Values&, int& rows) { return (rows /= 2) > 0; }},
    {.name = "ComparesNothing", .compare = [](Values&, int&) { return false; }},
    {.name = "ComparesKeys",
     .compare =
         [](Values& p, int&) {
           p.kv.values = p.kv.keys;
           return true;
         }},
    {.name = "ComparesHalfOfTheRows",
     .compare = [](Values&, int& rows) { return (rows /= 2) > 0; }},
    {.name = "ComparesTheNextRows",
     .compare =
         [](Values& p, int& rows) {
           ++p.slots;
           return --rows > 0;
         }},
    {.name = "WritesTheSumsOfTheNextRows",
     .compare =
         [](Values& p, int&) {
           p.squares += 2;
           return true;
         }},
    {.name = "WritesSumsOneOff",
     .compare =
         [](Values& p, int&) {
           p.squares += 1;
           return true;
         }},
};

ModelConfig Config() {
  return {.layers = 3,
          .hidden = 64,
          .intermediate = 72,
          .heads = 16,
          .kv_heads = 8,
          .head_dim = 64,
          .vocab = 101,
          .max_position = 200};
}

// The check of a small model like `large`, on the emulated GPU and on the CPU.
std::string Check(const ModelConfig& large, const MatrixForms& forms = {},
                  int32_t block_tokens = 16) {
  const Weights small = SmallWeightsOf(SmallBlendedModelLike(large), forms);
  const auto device = *cuda::CudaDevice::Open(0);
  const auto gpu = *CudaRunner::Create(small, *device, {.blends = true});
  TransformerRunner cpu(small, {}, static_cast<int32_t>(BlendCheckTokens()));
  KvLayout layout = cpu.kv_layout();
  layout.block_tokens = block_tokens;
  const int64_t blocks = BlendCheckBlocks(layout);
  const auto pages = *cuda::CudaPages::Create(*device, layout, blocks);
  const Buffer here(static_cast<size_t>(blocks) * layout.BlockStride());
  EXPECT_TRUE(gpu->key_rotations().has_value());
  return Message(CheckBlends({*gpu, pages->view()}, {cpu, {here.as<std::byte>(), blocks, layout}}));
}

class BlendCheckTest : public testing::TestWithParam<WrongKernels> {
 protected:
  BlendCheckTest() { wrong = &GetParam(); }
  ~BlendCheckTest() override { wrong = nullptr; }
};

TEST_P(BlendCheckTest, FindsWrongKernels) {
  EXPECT_THAT(Check(Config()), HasSubstr("a small model is blended wrongly"));
}

INSTANTIATE_TEST_SUITE_P(Wrong, BlendCheckTest, testing::ValuesIn(kWrong),
                         [](const auto& tested) { return tested.param.name; });

// A worker with wrong kernels of blends serves only if nothing needs them.
class BlendCheckAtStart : public testing::Test {
 protected:
  ~BlendCheckAtStart() override { wrong = nullptr; }
  // The emulated GPU has 8 GiB.
  static std::string Start(const GpuOptions& options, const ModelConfig& config = Config()) {
    GpuOptions small = options;
    small.memory_utilization = 0.034;
    const absl::Status status = OpenGpuHost(RandomWeights(config, 3, 0.2f), small).status();
    EXPECT_TRUE(status.ok() || absl::IsFailedPrecondition(status)) << status;
    return Message(status);
  }
};

TEST_F(BlendCheckAtStart, IsMadeIfTheWorkerBlends) {
  EXPECT_EQ(Start({.blends = true}), "");
  wrong = &kWrong[0];
  EXPECT_THAT(Start({.blends = true}), AllOf(HasSubstr("cuda:0 cannot be trusted"),
                                             HasSubstr("a small model is blended wrongly")));
  EXPECT_EQ(Start({.blends = false}), "");
}

TEST_F(BlendCheckAtStart, IsNotMadeIfTheModelOrItsPagesCannotBlend) {
  wrong = &kWrong[0];
  ModelConfig shallow = Config();
  shallow.layers = 2;
  EXPECT_EQ(Start({.blends = true}, shallow), "");
  EXPECT_EQ(Start({.format = {.dtype = KvDtype::kI8}, .blends = true}), "");
}

TEST(BlendCheck, PassesWithRowsOfEveryWidth) {
  for (const int32_t head_dim : {64, 128}) {
    for (const int32_t kv_heads : {1, 3, 8, 40}) {
      ModelConfig config = Config();
      config.head_dim = head_dim;
      config.kv_heads = kv_heads;
      config.heads = 2 * kv_heads;
      EXPECT_EQ(Check(config), "") << kv_heads << " of " << head_dim;
    }
  }
}

TEST(BlendCheck, PassesWithOtherPagesAndQuantisedMatrices) {
  for (const int32_t block_tokens : {32, 1024}) EXPECT_EQ(Check(Config(), {}, block_tokens), "");
  for (const WeightPolicy policy : {WeightPolicy::kInt8, WeightPolicy::kInt4}) {
    EXPECT_EQ(Check(Config(), FormsOf(policy)), "");
  }
}

class BlendCheckOfFamily : public testing::TestWithParam<const char*> {};

// A good GPU passes with every model that may blend.
TEST_P(BlendCheckOfFamily, Passes) {
  ModelConfig config = *LoadModelConfig(SourceFolder() + "/tests/golden/logits/" + GetParam());
  config.layers = 3;
  config.head_dim = 64;
  if (config.rope.rotary_dims != 0) config.rope.rotary_dims = 24;
  if (!config.rope.divisors.empty()) {
    config.rope.divisors.assign(config.rope.RotaryDims(config.head_dim) / 2, 3.0f);
  }
  config.sliding_window.clear();
  if (!config.layer_rope.empty()) config.layer_rope.resize(3, config.layer_rope.back());
  if (!config.experts.dense.empty()) config.experts.dense.resize(3, false);
  ASSERT_TRUE(CanBlend(config));
  EXPECT_EQ(Check(config), "");
}

INSTANTIATE_TEST_SUITE_P(Families, BlendCheckOfFamily,
                         testing::Values("falcon_11b", "falcon_7b", "falcon_sequential", "gemma2",
                                         "gemma3", "glm", "glm4", "glm4_moe", "gpt_neox",
                                         "gpt_neox_sequential", "gpt_oss", "granite", "mixtral",
                                         "olmo2", "phi3_window", "phi4_longrope", "qwen2_moe",
                                         "qwen2_yarn", "qwen3_bias", "qwen3_moe", "smollm3",
                                         "starcoder2"),
                         [](const auto& tested) { return std::string(tested.param); });

}  // namespace
}  // namespace penstock
