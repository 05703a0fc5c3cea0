// A model and its pages on the emulated GPU.

#include "worker/model/gpu_host.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <utility>

#include "kernels/cuda/cuda_device.h"
#include "kernels/page_copier.h"
#include "kvstore/cache/block_pool.h"
#include "model/forward/runner_check.h"
#include "model/forward/transformer_runner.h"
#include "tests/support/environment.h"

namespace penstock {
namespace {

// The emulated GPU has 8 GiB: this is 2 % of them, and no more than the test touches.
constexpr double kShare = 0.034;

ModelConfig TinyConfig() {
  return {.layers = 2,
          .hidden = 64,
          .intermediate = 72,
          .heads = 4,
          .kv_heads = 2,
          .head_dim = 64,
          .vocab = 101,
          .max_position = 200};
}

GpuOptions Options() { return {.memory_utilization = kShare, .format = {.dtype = KvDtype::kI8}}; }

std::vector<float> Step(ModelRunner& runner, const PagedKv& kv, const std::vector<uint32_t>& tokens,
                        int32_t position, const std::vector<uint32_t>& blocks,
                        bool prompt = false) {
  std::vector<float> logits(runner.vocab());
  const SequenceStep step{.tokens = tokens,
                          .position = position,
                          .blocks = blocks,
                          .prompt = prompt,
                          .wants_logits = true};
  const absl::Status status = runner.Step(
      {.sequences = {&step, 1}, .kv = kv, .logits = {logits.data(), {1, runner.vocab()}}});
  EXPECT_TRUE(status.ok()) << status.message();
  return logits;
}

TEST(GpuHost, ItsPagesGoToAHostAndBack) {
  const Weights weights = RandomWeights(TinyConfig(), 3, 0.2f);
  const auto gpu = OpenGpuHost(weights, Options());
  ASSERT_TRUE(gpu.ok()) << gpu.status().message();
  const auto pool = *BlockPool::CreateOver((*gpu)->pages());
  const PagedKv far = pool->view();
  const auto host_pool = *BlockPool::Create(far.layout, 4);
  TransformerRunner cpu(weights, {}, 64);

  const std::vector<uint32_t> prompt = {1, 5, 9, 13, 2, 88, 41, 7, 7, 3, 60, 21, 30, 99, 4, 17, 6};
  const std::vector<uint32_t> there = {5, 2}, here = {3, 0}, elsewhere = {7, 9};
  Step((*gpu)->runner(), far, prompt, 0, there);
  std::vector<std::byte> pages(2 * far.layout.PayloadBytes());
  ReadPages(far, there, 0, far.layout.PayloadBytes(), pages.data());
  WritePages(host_pool->view(), here, 0, far.layout.PayloadBytes(), pages.data());
  WritePages(far, elsewhere, 0, far.layout.PayloadBytes(), pages.data());

  const std::vector<float> want = Step((*gpu)->runner(), far, {42}, 17, there);
  EXPECT_EQ(Step((*gpu)->runner(), far, {42}, 17, elsewhere), want);
  const std::vector<float> got = Step(cpu, host_pool->view(), {42}, 17, here);
  EXPECT_LT(Deviation(got, want), 2e-2);
}

TEST(GpuHost, TheCheckTakesFewBits) {
  ModelConfig config = TinyConfig();
  config.head_dim = 128;
  Weights weights = RandomWeights(config, 3, 0.2f);
  AddRandomMeans(weights);
  for (const char* format : {"i4r", "k3v2", "i4r+128", "k3v3+64", "i4rc+128", "k3v3c+64"}) {
    GpuOptions options = Options();
    options.format = *KvPageFormatOf(format);
    options.evicts = true;
    EXPECT_EQ(Message(OpenGpuHost(weights, options).status()), "") << format;
  }
}

ModelConfig WithMtp(const char* name) {
  ModelConfig config = *LoadModelConfig(SourceFolder() + "/tests/golden/logits/" + name);
  config.use_mtp = true;
  config.head_dim = 64;
  if (config.rope.rotary_dims != 0) config.rope.rotary_dims = 24;
  return config;
}

// The layer for multi-token prediction is compared in pages of every kind.
TEST(GpuHost, TheCheckTakesTheLayerThatGuesses) {
  Weights weights = RandomWeights(WithMtp("glm4_moe_mtp"), 3, 0.2f);
  AddRandomMeans(weights);
  for (const char* format : {"bf16", "i8", "k3v2", "k3v3+64", "k3v3c+64"}) {
    GpuOptions options = Options();
    options.format = *KvPageFormatOf(format);
    const auto gpu = OpenGpuHost(weights, options);
    ASSERT_TRUE(gpu.ok()) << format << ": " << gpu.status();
    EXPECT_NE((*gpu)->runner().mtp(), nullptr);
  }
}

// Second copies lie apart from the blocks, even where there are as many of them, so that lower
// tiers can have the blocks without them.
TEST(GpuHost, SecondCopiesLieApart) {
  const Weights weights = RandomWeights(TinyConfig(), 3, 0.2f);
  GpuOptions options = Options();
  options.format = {.dtype = KvDtype::kK3v3, .span = 4096};
  options.splits_pages = true;
  options.page_bytes_max = 512 << 10;
  const auto gpu = OpenGpuHost(weights, options);
  ASSERT_TRUE(gpu.ok()) << gpu.status();
  const auto pool = *(*gpu)->MakePool();
  EXPECT_EQ(pool->row_counts().total, pool->view().blocks);
  EXPECT_NE(pool->view().rows, nullptr);
  EXPECT_EQ(pool->view().FirstCopies().layout.layers, 2);
  options.page_bytes_max = 44 << 10;
  EXPECT_NE(Message(OpenGpuHost(weights, options).status()).find("leaves no room for a block"),
            std::string::npos);
}

TEST(GpuHost, AnglesOfCentredKeysLeaveLessForBlocks) {
  const auto blocks = [](const char* format, int32_t max_position) {
    ModelConfig config = TinyConfig();
    config.max_position = max_position;
    Weights weights = RandomWeights(config, 3, 0.2f);
    GpuOptions options = Options();
    options.format = *KvPageFormatOf(format);
    if (options.format.centred) AddRandomMeans(weights);
    const auto gpu = OpenGpuHost(weights, options);
    EXPECT_TRUE(gpu.ok()) << gpu.status();
    return (*gpu)->pages().blocks;
  };
  const int64_t plain = blocks("i8+64", 1 << 16), centred = blocks("i8c+64", 1 << 16);
  const KvLayout layout =
      KvLayout{.layers = 2, .kv_heads = 2, .head_dim = 64}.In(*KvPageFormatOf("i8c+64"));
  // 2 bytes for each of 64 elements of a position, beside the queries and means.
  EXPECT_GE(plain - centred,
            ((int64_t{2} * 64) << 16) / static_cast<int64_t>(layout.BlockStride()));
}

TEST(GpuHost, EvictsIfItIsTo) {
  const Weights weights = RandomWeights(TinyConfig(), 3, 0.2f);
  for (const bool evicts : {false, true}) {
    GpuOptions options = Options();
    options.evicts = evicts;
    const auto gpu = OpenGpuHost(weights, options);
    ASSERT_TRUE(gpu.ok()) << gpu.status();
    EXPECT_EQ((*gpu)->runner().eviction_attention().has_value(), evicts);
  }
}

TEST(GpuHost, SaysWhatDoesNotFit) {
  const Weights weights = RandomWeights(TinyConfig(), 3);
  GpuOptions options = Options();
  const auto message = [&] { return Message(OpenGpuHost(weights, options).status()); };
  EXPECT_EQ(message(), "");
  options.memory_utilization = 0.01;
  EXPECT_EQ(OpenGpuHost(weights, options).status().code(), absl::StatusCode::kResourceExhausted);
  EXPECT_NE(message().find("gpu_memory_utilization of 0.01"), std::string::npos) << message();
  options.memory_utilization = 0.03195;  // room for some blocks
  EXPECT_EQ(OpenGpuHost(weights, options).status().code(), absl::StatusCode::kResourceExhausted);
  EXPECT_NE(message().find("the check of cuda:0 at start takes"), std::string::npos) << message();
  options.memory_utilization = 0;
  EXPECT_EQ(OpenGpuHost(weights, options).status().code(), absl::StatusCode::kInvalidArgument);
  options = Options();
  options.index = 3;
  EXPECT_EQ(OpenGpuHost(weights, options).status().code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_NE(message().find("cuda:3"), std::string::npos) << message();
}

TEST(GpuHost, SaysThatItHasNoLibraryKernels) {
  GpuOptions options = Options();
  options.kernels = "library";
  const absl::Status status = OpenGpuHost(RandomWeights(TinyConfig(), 3), options).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_NE(Message(status).find("this build has no library kernels"), std::string::npos) << status;
}

GpuOptions FastOptions() {
  GpuOptions options = Options();
  options.numerics = "fast";
  options.format.dtype = KvDtype::kBf16;
  options.memory_utilization = 0.045;  // evictions take memory, too
  return options;
}

class FastGpuHost : public testing::Test {
 protected:
  static std::string Refusal(const ModelConfig& config, const GpuOptions& options) {
    const absl::Status status = OpenGpuHost(RandomWeights(config, 3, 0.2f), options).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition) << status;
    EXPECT_NE(Message(status).find("numerics is fast"), std::string::npos) << status;
    EXPECT_NE(Message(status).find("numerics=exact"), std::string::npos) << status;
    return Message(status);
  }

  const ScopedEnvironment hopper_{"PENSTOCK_EMULATED_HOPPER", "1"};
};

// The start-up check has passed, also with a window and evictions.
TEST_F(FastGpuHost, HasAnArithmeticOfItsOwn) {
  ModelConfig config = TinyConfig();
  for (const std::vector<int32_t>& windows : {std::vector<int32_t>{}, {30, 0}, {30, 30}}) {
    config.sliding_window = windows;
    const Weights weights = RandomWeights(config, 3, 0.2f);
    GpuOptions options = FastOptions();
    options.evicts = true;
    for (const auto& [numerics, arithmetic] :
         {std::pair{"fast", "cuda 9.0 fast 1"}, {"exact", "cuda 9.0"}}) {
      options.numerics = numerics;
      const auto gpu = OpenGpuHost(weights, options);
      ASSERT_TRUE(gpu.ok()) << gpu.status();
      EXPECT_EQ((*gpu)->arithmetic(), arithmetic);
      EXPECT_EQ((*gpu)->runner().eviction_attention().has_value(), windows.empty());
    }
  }
}

TEST_F(FastGpuHost, SaysWhatTheLibraryLacks) {
  ModelConfig config = TinyConfig();
  config.attention_cap = 30;
  EXPECT_NE(Refusal(config, FastOptions()).find("a soft cap"), std::string::npos);
  config = TinyConfig();
  config.attention_sinks = true;
  EXPECT_NE(Refusal(config, FastOptions()).find("attention sinks"), std::string::npos);
  GpuOptions options = FastOptions();
  options.format.dtype = KvDtype::kI8;
  EXPECT_NE(Refusal(TinyConfig(), options).find("kv_format is i8"), std::string::npos);
}

TEST_F(FastGpuHost, IsNotServedFromIfTheLibraryComputesWrongly) {
  const ScopedEnvironment fault("PENSTOCK_EMULATED_PREFILL_FAULT", "1");
  const std::string refusal = Refusal(TinyConfig(), FastOptions());
  EXPECT_NE(refusal.find("cuda:0 cannot be trusted"), std::string::npos) << refusal;
  EXPECT_NE(refusal.find("off the CPU's"), std::string::npos) << refusal;
}

TEST(GpuHost, FastNumericsNeedCapability90) {
  const absl::Status status = OpenGpuHost(RandomWeights(TinyConfig(), 3), FastOptions()).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_NE(Message(status).find("numerics is fast, and emulator has compute capability 8.0"),
            std::string::npos)
      << status;
}

TEST(GpuHost, AGpuThatComputesOrCopiesWronglyIsNotServedFrom) {
  const ScopedEnvironment fault("PENSTOCK_EMULATED_FAULT", "1");
  const absl::Status status = OpenGpuHost(RandomWeights(TinyConfig(), 3), Options()).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_NE(Message(status).find("cuda:0 cannot be trusted"), std::string::npos) << status;
  EXPECT_NE(Message(status).find("a small model is computed wrongly"), std::string::npos) << status;
}

class SeveralGpus : public testing::Test {
 protected:
  GpuOptions Two() const {
    GpuOptions options = Options();
    options.tensor_parallel = 2;
    options.nccl_library = FAKE_NCCL;
    return options;
  }
  std::string Refusal(const GpuOptions& options) const {
    const absl::Status status = OpenGpuHost(weights_, options).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition) << status.message();
    return Message(status);
  }

  const ScopedEnvironment gpus_{"PENSTOCK_EMULATED_GPUS", "3"};
  const Weights weights_ = RandomWeights(TinyConfig(), 3, 0.2f);
};

TEST_F(SeveralGpus, AreOneToTheHost) {
  const std::vector<uint32_t> prompt = {1, 5, 9, 13, 2, 88, 41, 7, 7, 3, 60, 21, 30, 99, 4, 17, 6};
  const auto two = OpenGpuHost(weights_, Two());
  ASSERT_TRUE(two.ok()) << two.status().message();
  GpuOptions apart = Options();
  apart.index = 2;
  const auto one = OpenGpuHost(weights_, apart);
  ASSERT_TRUE(one.ok()) << one.status().message();
  const PagedKv& pages = (*two)->pages();
  EXPECT_FALSE((*two)->runner().eviction_attention().has_value());
  EXPECT_EQ(pages.layout, (*one)->pages().layout);
  EXPECT_EQ((*two)->arithmetic(), (*one)->arithmetic());
  EXPECT_GT(pages.blocks, (*one)->pages().blocks);  // each has half of every block
  const auto pool = *BlockPool::CreateOver(pages);
  const std::vector<uint32_t> blocks = {5, 2}, elsewhere = {7, 9};
  const std::vector<float> got = Step((*two)->runner(), pool->view(), prompt, 0, blocks);
  const std::vector<float> want = Step((*one)->runner(), (*one)->pages(), prompt, 0, elsewhere);
  EXPECT_LT(Deviation(got, want), 1e-2);
}

// The start-up check has compared a small model with the CPU's, in pages without rows.
TEST_F(SeveralGpus, HaveTheirHeadsOfSecondCopies) {
  Weights weights = RandomWeights(TinyConfig(), 3, 0.2f);
  AddRandomMeans(weights);
  for (const char* format : {"k3v3", "k3v3+64", "k3v3c+64"}) {
    GpuOptions options = Two();
    options.format = *KvPageFormatOf(format);
    options.splits_pages = true;
    options.page_bytes_max = 512 << 10;
    const auto gpus = OpenGpuHost(weights, options);
    ASSERT_TRUE(gpus.ok()) << format << ": " << gpus.status();
    const auto pool = *(*gpus)->MakePool();
    EXPECT_EQ(pool->view().layout.format(), options.format);
    if (options.format.span == 0) continue;
    EXPECT_GT(pool->row_counts().total, 0);
    const PagedKv first = pool->view().FirstCopies();
    EXPECT_EQ(first.layout.layers, 2);
    ASSERT_NE(first.copier, nullptr);
    const std::vector<std::byte> bytes(first.layout.PayloadBytes(), std::byte{9});
    const uint32_t block = 1;
    WritePages(first, {&block, 1}, 0, bytes.size(), bytes.data());
    std::vector<std::byte> page(pool->view().layout.PayloadBytes());
    ReadPages(pool->view(), {&block, 1}, 0, page.size(), page.data());
    const KvLayout& layout = pool->view().layout;
    for (int32_t layer = 0; layer < layout.layers; ++layer) {
      EXPECT_EQ(page[layout.BytesBefore(layer)], std::byte(layer % 2 == 0 ? 9 : 0)) << layer;
    }
  }
  GpuOptions small = Two();
  small.format = {.dtype = KvDtype::kK3v3, .span = 4096};
  small.splits_pages = true;
  small.page_bytes_max = 22 << 10;
  EXPECT_THAT(Message(OpenGpuHost(weights, small).status()),
              testing::HasSubstr("leaves no room for a block"));
}

TEST_F(SeveralGpus, GuessTogether) {
  GpuOptions options = Two();
  options.format.dtype = KvDtype::kBf16;
  const auto gpus = OpenGpuHost(RandomWeights(WithMtp("glm4_moe_mtp"), 3, 0.2f), options);
  ASSERT_TRUE(gpus.ok()) << gpus.status();
  EXPECT_NE((*gpus)->runner().mtp(), nullptr);
}

// The start-up check has compared scores and copies with the CPU's.
TEST_F(SeveralGpus, EvictTogetherIfTheyAreTo) {
  GpuOptions options = Two();
  options.evicts = true;
  const auto gpus = OpenGpuHost(weights_, options);
  ASSERT_TRUE(gpus.ok()) << gpus.status();
  EXPECT_EQ((*gpus)->runner().eviction_attention().value_or(EvictionAttention()).heads, 4);
}

// Of latents each has whole pages, which the host writes to all of them.
TEST_F(SeveralGpus, HaveWholePagesOfLatents) {
  ModelConfig config = TinyConfig();
  config.kv_heads = 1;
  config.latent = {.rank = 512, .plain_dims = 24, .rope_dims = 64, .value_dims = 32};
  config.head_dim = config.latent.rank + config.latent.rope_dims;
  config.rope.rotary_dims = config.latent.rope_dims;
  const Weights weights = RandomWeights(config, 3, 0.2f);
  GpuOptions options = Two();
  options.format.dtype = KvDtype::kBf16;
  const auto two = OpenGpuHost(weights, options);
  ASSERT_TRUE(two.ok()) << two.status();
  const PagedKv& pages = (*two)->pages();
  TransformerRunner cpu(weights, {}, 64);
  EXPECT_EQ(pages.layout, cpu.kv_layout());
  // A block takes as much on each GPU as on one of 8 GiB; 256 MiB are for what steps allocate.
  EXPECT_LT(static_cast<double>(pages.blocks) * static_cast<double>(pages.layout.BlockStride()),
            kShare * 8 * (1 << 30) - (256 << 20));
  const std::vector<uint32_t> prompt = {1, 5, 9, 13, 2, 88, 41, 7, 7, 3, 60, 21, 30, 99, 4, 17, 6};
  const std::vector<uint32_t> blocks = {5, 2}, elsewhere = {7, 9};
  const auto pool = *BlockPool::Create(pages.layout, 6);
  const std::vector<float> want = Step(cpu, pool->view(), prompt, 0, blocks);
  EXPECT_LT(Deviation(Step((*two)->runner(), pages, prompt, 0, blocks), want), 2e-2);
  const size_t bytes = pages.layout.PayloadBytes();
  std::vector<std::byte> host(2 * bytes);
  ReadPages(pages, blocks, 0, bytes, host.data());
  WritePages(pages, elsewhere, 0, bytes, host.data());
  EXPECT_EQ(Step((*two)->runner(), pages, {42}, 17, elsewhere),
            Step((*two)->runner(), pages, {42}, 17, blocks));
}

// Each GPU computes its heads of a prompt by the library's kernel.
TEST_F(SeveralGpus, AreFastTogether) {
  const ScopedEnvironment hopper("PENSTOCK_EMULATED_HOPPER", "1");
  std::vector<uint32_t> prompt;  // of two tiles of keys
  for (uint32_t i = 0; i < 150; ++i) prompt.push_back((i * i * 7 + i) % 101);
  const std::vector<uint32_t> blocks = {5, 2, 3, 0, 9, 8, 1, 4, 7, 6};
  const auto logits = [&](GpuOptions options, const char* numerics, size_t chunk) {
    options.format.dtype = KvDtype::kBf16;
    options.numerics = numerics;
    const auto host = OpenGpuHost(weights_, options);
    EXPECT_TRUE(host.ok()) << host.status();
    std::vector<float> last;
    for (size_t at = 0; at < prompt.size(); at += chunk) {
      const auto begin = prompt.begin() + static_cast<std::ptrdiff_t>(at);
      const auto end = begin + static_cast<std::ptrdiff_t>(std::min(chunk, prompt.size() - at));
      last = Step((*host)->runner(), (*host)->pages(), {begin, end}, static_cast<int32_t>(at),
                  blocks, /*prompt=*/true);
    }
    return last;
  };
  const std::vector<float> two = logits(Two(), "fast", prompt.size());
  EXPECT_EQ(logits(Two(), "fast", 59), two);
  EXPECT_NE(logits(Two(), "exact", prompt.size()), two);
  EXPECT_LT(Deviation(two, logits(Options(), "fast", prompt.size())), 1e-2);
}

TEST_F(SeveralGpus, ThePoolIsWhatFitsOnTheFullest) {
  const auto blocks = [&] { return (*OpenGpuHost(weights_, Two()))->pages().blocks; };
  const int64_t all = blocks();
  const auto device = *cuda::CudaDevice::Open(1);
  const auto taken = *cuda::DeviceBuffer::Create(size_t{4} << 20, "others");
  EXPECT_LT(blocks(), all);
  GpuOptions beside = Two();
  beside.index = 1;
  EXPECT_LT((*OpenGpuHost(weights_, beside))->pages().blocks, all);
}

TEST_F(SeveralGpus, SayWhatDoesNotFit) {
  GpuOptions options = Two();
  options.tensor_parallel = 4;
  EXPECT_NE(Refusal(options).find("the model's 2 KV heads"), std::string::npos);
  options = Two();
  options.index = 2;
  EXPECT_NE(Refusal(options).find("tensor_parallel is 2: device cuda:3"), std::string::npos)
      << Refusal(options);
  options = Two();
  options.nccl_library = "no-such-libnccl.so";
  EXPECT_NE(Refusal(options).find("no-such-libnccl.so"), std::string::npos);
  EXPECT_NE(Refusal(options).find("tensor_parallel=1"), std::string::npos);
}

}  // namespace
}  // namespace penstock
