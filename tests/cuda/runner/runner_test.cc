// The whole forward pass of the CUDA backend on the emulated device, beside the CPU's.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cstdlib>
#include <filesystem>
#include <string>
#include <utility>

#include "model/cuda/cuda_model_check.h"
#include "model/cuda/cuda_runner.h"
#include "model/forward/runner_check.h"
#include "model/forward/transformer_runner.h"
#include "model/load/load_model.h"
#include "model/sampler/sampler.h"
#include "tests/cuda/runner/rounded_weights.h"
#include "tests/cuda/runner/runner_rig.h"
#include "tests/support/environment.h"

namespace penstock {
namespace {

struct Both {
  explicit Both(Weights of)
      : weights(std::move(of)),
        device(*cuda::CudaDevice::Open(0)),
        cuda_runner(*CudaRunner::Create(weights, *device, {})),
        cpu_runner(weights, {}, 512) {}
  explicit Both(const ModelConfig& config) : Both(RandomWeights(config, 5, 0.2f)) {}

  Weights weights;
  std::unique_ptr<cuda::CudaDevice> device;
  std::unique_ptr<CudaRunner> cuda_runner;
  TransformerRunner cpu_runner;
};

Weights WithMeans(const ModelConfig& config) {
  Weights weights = RandomWeights(config, 5, 0.2f);
  AddRandomMeans(weights);
  return weights;
}

constexpr double kBf16Deviation = 2e-2;  // activations are bf16 here

void CompareWithCpu(const ModelConfig& config) {
  Both both(config);
  Rig cuda(*both.cuda_runner, 3), cpu(both.cpu_runner, 3);
  const auto step = [&](const std::vector<Rig::Feed>& feeds) {
    EXPECT_LT(Deviation(cuda.Step(feeds), cpu.Step(feeds)), kBf16Deviation);
  };
  step({{0, Prompt(21, 1), 0}, {1, Prompt(5, 2), 0, false}});
  step({{2, Prompt(9, 3), 0}, {0, {7}, 21}, {1, {9, 11}, 5}});
  step({{1, {3}, 7}, {2, {5}, 9, false}, {0, {13}, 22}});
}

TEST(CudaRunner, AgreesWithTheCpu) { CompareWithCpu(TinyConfig()); }

TEST(CudaRunner, TakesEveryVariantOfTheFamily) {
  ModelConfig config = TinyConfig();
  config.tied_embeddings = config.qkv_bias = config.output_bias = config.mlp_bias = true;
  config.qk_norm = QkNorm::kHead;
  config.sliding_window = {10, 0};
  CompareWithCpu(config);
}

constexpr double kQuantisedDeviation = 5e-2;  // weights are rounded to bf16, too

// More rows than the products of few rows take, so that matrices are expanded, then single tokens.
void CompareQuantised(const ModelConfig& config, const MatrixForms& forms) {
  Both both(RandomWeights(config, 5, 0.2f, forms));
  ASSERT_TRUE(both.weights.quantised());
  Rig cuda(*both.cuda_runner, 2), cpu(both.cpu_runner, 2);
  EXPECT_LT(Deviation(cuda.Step({{0, Prompt(70, 1), 0}}), cpu.Step({{0, Prompt(70, 1), 0}})),
            kQuantisedDeviation);
  const std::vector<Rig::Feed> next = {{0, {7}, 70}, {1, Prompt(9, 3), 0}};
  const std::vector<float> together = cuda.Step(next);
  EXPECT_LT(Deviation(together, cpu.Step(next)), kQuantisedDeviation);
  // The same tokens in pieces of few rows, whose products use the codes, have the same bits.
  Rig pieces(*both.cuda_runner, 1);
  for (const auto& [first, count] : {std::pair{0, 40}, {40, 29}, {69, 1}}) {
    const std::vector<uint32_t> all = Prompt(70, 1);
    pieces.Step({{0, {all.begin() + first, all.begin() + first + count}, first}});
  }
  const std::vector<float> alone = pieces.Step({{0, {7}, 70}});
  EXPECT_TRUE(std::equal(alone.begin(), alone.end(), together.begin()));
}

TEST(CudaRunner, TakesQuantisedWeights) {
  const QuantisedFormat int8{.bits = 8, .group = 128}, int4{.bits = 4, .group = 32},
      fp8{.code = CodeType::kE4m3, .group = 64, .scale = ScaleType::kF32},
      fp4{.code = CodeType::kE2m1, .bits = 4, .group = 32, .scale = ScaleType::kBf16},
      iq4{.code = CodeType::kIq4, .bits = 4, .group = 32, .scale = ScaleType::kBf16};
  ModelConfig config = TinyConfig();
  config.qkv_bias = true;
  for (const bool tied : {false, true}) {
    config.tied_embeddings = tied;
    CompareQuantised(config, {.layers = int4, .lm_head = int8});
    CompareQuantised(config, {.layers = int8, .lm_head = int8});
    CompareQuantised(config, {.layers = fp8, .lm_head = std::nullopt});
    CompareQuantised(config, {.layers = fp4, .lm_head = fp8});
    CompareQuantised(config, {.layers = iq4, .lm_head = fp8});  // iq4 becomes bf16
  }
}

void RoundToBf16(Weights& weights) {
  for (LayerWeights& layer : weights.layers) {
    for (WeightMatrix* matrix :
         {&layer.qkv, &layer.attention_output, &layer.gate_up, &layer.down}) {
      *matrix = InBf16(*matrix);
    }
    if (layer.experts.has_value()) RoundToBf16(*layer.experts);
  }
  weights.lm_head = InBf16(weights.lm_head);
  if (weights.embedding_weight.has_value()) {
    weights.embedding_weight = InBf16(*weights.embedding_weight);
  }
}

// Every quantised checkpoint of a family that the kernels take, with zero points, offsets, act
// order and several formats in one matrix: the bits of the same weights in bf16.
TEST(CudaRunner, TakesQuantisedCheckpoints) {
  int models = 0;
  for (const auto& entry :
       std::filesystem::directory_iterator(SourceFolder() + "/tests/golden/logits")) {
    if (!entry.is_directory()) continue;
    const std::string file = entry.path() / "model.gguf";
    const std::string name = std::filesystem::exists(file) ? file : entry.path().string();
    auto model = LoadModel(name), rounded = LoadModel(name);
    ASSERT_TRUE(model.ok() && rounded.ok()) << model.status();
    const ModelConfig config = model->weights.config;
    if (!model->weights.quantised() || !CheckCudaModel(config).ok()) continue;
    if (!cuda::SupportsKv({.head_dim = config.head_dim})) continue;
    SCOPED_TRACE(name);
    RoundToBf16(rounded->weights);
    const Both both(std::move(model->weights)), plain(std::move(rounded->weights));
    Rig codes(*both.cuda_runner, 1), bf16(*plain.cuda_runner, 1);
    for (auto [tokens, position] : {std::pair{Prompt(70, 1), 0}, {Prompt(3, 2), 70}}) {
      for (uint32_t& token : tokens) token %= static_cast<uint32_t>(config.vocab);
      EXPECT_EQ(codes.Step({{0, tokens, position}}), bf16.Step({{0, tokens, position}}));
    }
    ++models;
  }
  EXPECT_GE(models, 2);
}

std::vector<KvPageFormat> PageFormats() {
  std::vector<KvPageFormat> formats;
  for (const KvDtype dtype : kKvDtypes) {
    formats.push_back({.dtype = dtype});
    if (dtype == KvDtype::kBf16) continue;
    for (const bool centred : {false, true}) {
      formats.push_back({.dtype = dtype, .span = 64, .centred = centred});
    }
  }
  return formats;
}

// Each format is written by one and read by both, one query at a time and several. Of several, the
// later ones read what either has just written: few bits get the next code now and then.
TEST(CudaRunner, ItsPagesServeTheCpu) {
  for (const KvPageFormat& format : PageFormats()) {
    for (const std::vector<uint32_t>& next : {std::vector<uint32_t>{4}, {4, 6, 9}}) {
      Both both(WithMeans(TinyConfig()));
      Rig cuda(*both.cuda_runner, 1, format), cpu(both.cpu_runner, 1, format);
      cuda.Step({{0, Prompt(75, 8), 0}});
      std::copy_n(cuda.memory.as<std::byte>(), cuda.memory.bytes(), cpu.memory.as<std::byte>());
      const bool own_codes =
          next.size() > 1 && CodeBits(cuda.kv.layout.dtype, KvPlane::kValues) <= 4;
      EXPECT_LT(Deviation(cuda.Step({{0, next, 75}}), cpu.Step({{0, next, 75}})),
                own_codes ? 8e-2 : kBf16Deviation)
          << KvPageFormatName(format) << " " << next.size();
    }
  }
}

// Products of another implementation: ours, without slices, in another order.
class OtherProducts final : public cuda::Products {
 public:
  std::string_view name() const override { return "other"; }
  cuda::InputOrder order() const override { return cuda::InputOrder::kOwn; }
  absl::Status Check(const cuda::Weight& weight) const override {
    return weight.outputs == refused ? FailedPrecondition("refused") : absl::OkStatus();
  }
  int32_t Slices(const cuda::Weight& weight) const override { return SkinnySlices(weight); }
  cuda::Product Multiply(const cuda::Weight& weight, const Bf16* input, int rows, float* output,
                         void* stream) const override {
    multiplied.push_back({weight.outputs, weight.inputs, rows});
    return WideGemm(weight, input, rows, output, cuda::Slices::kAddedUp, stream);
  }

  int32_t refused = -1;
  mutable std::vector<std::array<int32_t, 3>> multiplied;  // outputs, inputs, rows
};

TEST(CudaRunner, UsesOneImplementationOfProducts) {
  const Weights weights = RandomWeights(TinyConfig(), 5, 0.2f);
  const auto device = *cuda::CudaDevice::Open(0);
  OtherProducts products;
  const auto runner = *CudaRunner::Create(weights, *device, {.products = &products});
  TransformerRunner cpu(weights, {}, 512);
  Rig got(*runner, 1), want(cpu, 1);
  const std::vector<Rig::Feed> feeds = {{0, Prompt(21, 1), 0}};
  EXPECT_LT(Deviation(got.Step(feeds), want.Step(feeds)), kBf16Deviation);
  // In the last layer only the last row goes on.
  const std::vector<std::array<int32_t, 3>> all = {
      {512, 64, 21}, {64, 256, 21}, {160, 64, 21}, {64, 80, 21},  // layer 0
      {512, 64, 21}, {64, 256, 1},  {160, 64, 1},  {64, 80, 1},   // layer 1
      {101, 64, 1}};                                              // logits
  EXPECT_EQ(products.multiplied, all);
}

TEST(CudaRunner, SaysWhichWeightItsProductsDoNotSupport) {
  const Weights weights = RandomWeights(TinyConfig(), 5, 0.2f);
  const auto device = *cuda::CudaDevice::Open(0);
  OtherProducts products;
  for (const int32_t outputs : {512, 160, 64, 101}) {
    products.refused = outputs;
    const auto runner = CudaRunner::Create(weights, *device, {.products = &products});
    EXPECT_EQ(runner.status().code(), absl::StatusCode::kFailedPrecondition) << outputs;
  }
}

// The bundled model, greedily: the same tokens, but where the CPU itself is nearly undecided.
TEST(CudaRunner, SaysWhatTheCpuSays) {
  auto model = LoadModel(ModelFolder());
  ASSERT_TRUE(model.ok()) << model.status().message();
  Both both(std::move(model->weights));
  Rig cuda(*both.cuda_runner, 1), cpu(both.cpu_runner, 1);
  std::vector<uint32_t> tokens = {5, 300, 41, 77, 902, 13, 1500, 8};
  int32_t position = 0, decided = 0;
  constexpr int kSteps = 12;
  for (int i = 0; i < kSteps; ++i) {
    std::vector<float> want = cpu.Step({{0, tokens, position}});
    const std::vector<float> got = cuda.Step({{0, tokens, position}});
    position += static_cast<int32_t>(tokens.size());
    const auto best = std::ranges::max_element(want);
    const auto token = static_cast<uint32_t>(best - want.begin());
    const float top = std::exchange(*best, -1e30f);
    if (top - *std::ranges::max_element(want) > 0.2f) {
      ++decided;
      EXPECT_EQ(std::ranges::max_element(got) - got.begin(), token) << i;
    }
    tokens = {token};
  }
  EXPECT_GE(decided, kSteps / 2);
}

// Rows in bf16 and in codes, of several spans in one step.
TEST(CudaRunner, SpansChangeNoBitOfChunksOrBatches) {
  for (const char* name : {"i4r+64", "k3v3+64", "i4rc+64", "k3v3c+64"}) {
    const KvPageFormat format = *KvPageFormatOf(name);
    Both both(WithMeans(TinyConfig()));
    Rig whole(*both.cuda_runner, 1, format), chunks(*both.cuda_runner, 2, format);
    const std::vector<uint32_t> prompt = Prompt(150, 6);
    const auto part = [&](int from, int to) {
      return std::vector<uint32_t>(prompt.begin() + from, prompt.begin() + to);
    };
    const std::vector<float> want = whole.Step({{0, prompt, 0}});
    chunks.Step({{0, part(0, 20), 0, false}, {1, part(30, 100), 0, false}});
    chunks.Step({{0, part(20, 90), 20, false}});
    chunks.Step({{0, part(90, 149), 90, false}});
    const std::vector<float> got = chunks.Step({{1, {7}, 70}, {0, part(149, 150), 149}});
    EXPECT_TRUE(std::equal(want.begin(), want.end(), got.end() - 101));
    // Another format has another answer.
    Rig plain(*both.cuda_runner, 1, format.dtype);
    EXPECT_NE(plain.Step({{0, prompt, 0}}), want);
  }
}

// Rotations of all dimensions, of some, and none, with norms of heads; the last rows of a step with
// others, and then steps that are graphs.
TEST(CudaRunner, CentredKeysAgreeWithTheCpuInEveryRotation) {
  ModelConfig config = TinyConfig();
  config.qk_norm = QkNorm::kHead;
  config.layer_rope = {LayerRope::kMain, LayerRope::kNone};
  for (const int32_t dims : {0, 32}) {
    config.rope.rotary_dims = dims;
    Both both(WithMeans(config));
    const KvPageFormat format{.dtype = KvDtype::kI8, .span = 64, .centred = true};
    Rig cuda(*both.cuda_runner, 2, format), cpu(both.cpu_runner, 2, format);
    const auto compare = [&](const std::vector<Rig::Feed>& feeds) {
      EXPECT_LT(Deviation(cuda.Step(feeds), cpu.Step(feeds)), kBf16Deviation) << dims;
    };
    compare({{0, Prompt(150, 1), 0}, {1, Prompt(70, 2), 0}});
    compare({{0, {9}, 150}, {1, {7}, 70}});
    compare({{0, {3}, 151}, {1, {8, 4}, 71}});
  }
}

TEST(CudaRunner, CentredKeysNeedMeans) {
  Both both(TinyConfig());
  const Rig rig(*both.cuda_runner, 1, {.dtype = KvDtype::kI8, .span = 64, .centred = true});
  const std::vector<uint32_t> token = {1};
  const SequenceStep step{.tokens = token, .blocks = rig.tables[0]};
  EXPECT_EQ(Message(both.cuda_runner->Step({.sequences = {&step, 1}, .kv = rig.kv})),
            "kv.layout has centred keys, and the weights have no means of keys");
}

TEST(CudaRunner, TellsOfBothCopiesOfALayer) {
  Both both(TinyConfig());
  Rig rig(*both.cuda_runner, 1, KvPageFormat{.dtype = KvDtype::kI8, .span = 64});
  std::vector<std::pair<int, int>> told;
  rig.on_layers_done = [&](int32_t first, int32_t last) { told.emplace_back(first, last); };
  rig.Step({{0, Prompt(5, 1), 0}});
  EXPECT_EQ(told, (std::vector<std::pair<int, int>>{{0, 2}, {2, 4}}));
  told.clear();
  rig.Step({{0, {3}, 5}});  // as a graph
  EXPECT_EQ(told, (std::vector<std::pair<int, int>>{{0, 4}}));
}

TEST(CudaRunner, NeighboursChangeNoBit) {
  Both both(TinyConfig());
  Rig alone(*both.cuda_runner, 3), batch(*both.cuda_runner, 3);
  alone.Step({{0, Prompt(20, 1), 0}});
  batch.Step({{1, Prompt(11, 4), 0}, {0, Prompt(20, 1), 0}, {2, Prompt(3, 5), 0}});
  const std::vector<float> one = alone.Step({{0, {8}, 20}});
  const std::vector<float> three = batch.Step({{2, {1}, 3}, {1, {2}, 11}, {0, {8}, 20}});
  EXPECT_TRUE(std::equal(one.begin(), one.end(), three.end() - 101));
}

TEST(CudaRunner, ExactlyTheSameInAnyChunks) {
  Both both(TinyConfig());
  Rig whole(*both.cuda_runner, 1), chunks(*both.cuda_runner, 1);
  const std::vector<uint32_t> prompt = Prompt(19, 6);
  const std::vector<float> want = whole.Step({{0, prompt, 0}});
  chunks.Step({{0, {prompt.begin(), prompt.begin() + 7}, 0, false}});
  chunks.Step({{0, {prompt[7]}, 7, false}});
  EXPECT_EQ(chunks.Step({{0, {prompt.begin() + 8, prompt.end()}, 8}}), want);
}

// Products of many rows are another kernel's.
TEST(CudaRunner, ExactlyTheSameInLargeChunks) {
  Both both(TinyConfig());
  Rig whole(*both.cuda_runner, 1), chunks(*both.cuda_runner, 1);
  const std::vector<uint32_t> prompt = Prompt(150, 6);
  const std::vector<float> want = whole.Step({{0, prompt, 0}});
  chunks.Step({{0, {prompt.begin(), prompt.begin() + 20}, 0, false}});
  chunks.Step({{0, {prompt.begin() + 20, prompt.begin() + 90}, 20, false}});
  EXPECT_EQ(chunks.Step({{0, {prompt.begin() + 90, prompt.end()}, 90}}), want);
}

TEST(CudaRunner, TellsOfLayersInOrder) {
  Both both(TinyConfig());
  Rig rig(*both.cuda_runner, 1);
  std::vector<int32_t> layers;
  std::vector<std::byte> told;  // what the layers' pages held then
  const auto pages_of = [&](int32_t first, int32_t last) {
    const size_t bytes = rig.kv.layout.LayerBytes();
    const std::byte* block = rig.kv.Block(rig.tables[0][0]);
    return std::vector<std::byte>(block + first * bytes, block + last * bytes);
  };
  rig.on_layers_done = [&](int32_t first, int32_t last) {
    layers.push_back(first);
    layers.push_back(last);
    const auto pages = pages_of(first, last);
    told.insert(told.end(), pages.begin(), pages.end());
  };
  rig.Step({{0, Prompt(4, 1), 0, false}});
  EXPECT_EQ(layers, (std::vector<int32_t>{0, 1, 1, 2}));
  EXPECT_EQ(told, pages_of(0, 2));
  EXPECT_NE(told[0], std::byte{0xff});
}

// Many tokens of the small vocabulary, the likely ones among them.
std::vector<uint32_t> Best() { return {0, 14, 28, 42, 56, 70, 84, 98}; }

std::vector<SamplingParams> AllKnobs() {
  return {{.temperature = 0},
          {.temperature = 1.5f, .seed = 3},
          {.temperature = 0.7f, .top_k = 7, .seed = 4},
          {.temperature = 1.1f, .top_p = 0.6f, .seed = 5},
          {.temperature = 2.0f, .min_p = 0.1f, .seed = 6},
          {.temperature = 1.3f, .top_p = 0.9f, .top_k = 40, .min_p = 0.01f, .seed = 7},
          {.temperature = 0, .stop_token_ids = Best(), .min_tokens = 3},
          {.temperature = 1.2f, .top_k = 9, .seed = 8, .stop_token_ids = Best(), .min_tokens = 3}};
}

// The next token of a sequence by each of `all`: from its logits on the host, and drawn.
void ExpectSameTokens(Rig& rig, Rig::Feed feed, const std::vector<SamplingParams>& all) {
  std::vector<SampledToken> want;
  feed.draws.clear();
  const std::vector<float> logits = rig.Step({feed});
  for (const SamplingParams& params : all) {
    std::vector<float> own = logits;
    want.push_back(Sampler(params, 1, {}).Sample(own));
    feed.draws.push_back(Sampler(params, 1, {}).OwnDraws().at(0));
  }
  feed.wants_logits = false;
  EXPECT_EQ(rig.Step({feed}).size(), 0u);
  for (size_t i = 0; i < all.size(); ++i) {
    const SampledToken got = Sampler(all[i], 1, {}).Take(rig.drawn[i]);
    EXPECT_EQ(got.id, want[i].id) << i;
    EXPECT_EQ(got.logprob, want[i].logprob) << i;
  }
}

TEST(CudaRunner, DrawsWhatTheHostDraws) {
  ModelConfig config = TinyConfig();
  config.hidden = 1024;  // logits of two slices
  Both both(RandomWeights(config, 5, 0.05f));
  Rig rig(*both.cuda_runner, 1), cpu(both.cpu_runner, 1);
  const Rig::Feed prompt{0, Prompt(20, 1), 0};
  EXPECT_LT(Deviation(rig.Step({prompt}), cpu.Step({prompt})), kBf16Deviation);
  ExpectSameTokens(rig, prompt, AllKnobs());
  for (int i = 0; i < 3; ++i) ExpectSameTokens(rig, {0, {8}, 20}, AllKnobs());
}

// Whoever comes with what, each gets what it would get alone.
TEST(CudaRunner, DrawsForSomeAndGivesLogitsToOthers) {
  Both both(TinyConfig());
  Rig alone(*both.cuda_runner, 5), batch(*both.cuda_runner, 5);
  const auto draw = [](uint64_t random) { return DrawSpec{.temperature = 2, .random = random}; };
  // The first is a chunk of a prompt, of which nobody wants anything yet.
  const std::vector<Rig::Feed> feeds = {{4, Prompt(6, 2), 0, false},
                                        {0, Prompt(5, 1), 0, false, {draw(1), draw(~uint64_t{0})}},
                                        {1, {7}, 0, true},
                                        {2, Prompt(4, 3), 0, true, {draw(uint64_t{3} << 62)}},
                                        {3, {9}, 0, false, {draw(uint64_t{1} << 63)}}};
  std::vector<float> logits;
  std::vector<uint32_t> ids;
  for (const Rig::Feed& feed : feeds) {
    const std::vector<float> own = alone.Step({feed});
    logits.insert(logits.end(), own.begin(), own.end());
    for (const DrawnToken& drawn : alone.drawn) ids.push_back(drawn.id);
  }
  EXPECT_EQ(batch.Step(feeds), logits);
  ASSERT_EQ(batch.drawn.size(), 4u);
  for (size_t i = 0; i < 4; ++i) EXPECT_EQ(batch.drawn[i].id, ids[i]) << i;
  EXPECT_NE(ids[0], ids[1]);
}

// One GPU's part is the whole; it comes without its bias, which is not added once per GPU.
class Whole final : public ProductExchange {
 public:
  StepReadiness Agree(const StepReadiness& own) override {
    EXPECT_EQ(Message(own.prepared), "");
    return {.prepared = missing, .memory_moved = own.memory_moved};
  }
  cuda::Product Sum(const cuda::Product& part, int rows, void*) override {
    EXPECT_EQ(part.bias, nullptr);
    EXPECT_EQ(part.width, TinyConfig().hidden);
    all_rows.push_back(rows);
    return part;
  }
  std::vector<int> all_rows;
  absl::Status missing;  // that another GPU says
};

TEST(CudaRunner, ExchangesWhatGpusShare) {
  ModelConfig config = TinyConfig();
  config.output_bias = config.mlp_bias = true;
  Both both(config);
  Whole exchange;
  const auto shared = *CudaRunner::Create(both.weights, *both.device, {.exchange = &exchange});
  Rig alone(*both.cuda_runner, 1), rank(*shared, 1);
  EXPECT_EQ(rank.Step({{0, Prompt(4, 1), 0}}), alone.Step({{0, Prompt(4, 1), 0}}));
  EXPECT_EQ(exchange.all_rows, (std::vector<int>{4, 4, 1, 1}));  // of the last layer, one row
  // If another GPU has no room, this one does not compute either.
  exchange.missing = ResourceExhausted("another GPU");
  const std::vector<uint32_t> token = {1};
  const SequenceStep next{.tokens = token, .position = 4, .blocks = rank.tables[0]};
  EXPECT_EQ(Message(shared->Step({.sequences = {&next, 1}, .kv = rank.kv})), "another GPU");
  EXPECT_EQ(exchange.all_rows.size(), 4u);
}

TEST(CudaRunner, NamesWhatItDoesNotTake) {
  ModelConfig config = TinyConfig();
  config.head_dim = 16;
  const Weights weights = RandomWeights(config, 1);
  const auto device = *cuda::CudaDevice::Open(0);
  const absl::Status status = CudaRunner::Create(weights, *device, {}).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_NE(Message(status).find("head_dim is 16"), std::string::npos);
  const absl::Status none = cuda::CudaDevice::Open(1).status();
  EXPECT_EQ(none.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_NE(Message(none).find("cuda:1"), std::string::npos);
}

// One checkpoint of every family.
TEST(CudaRunner, RefusesFamiliesByTheirParts) {
  const auto check = [](const std::string& name) {
    const auto config = LoadModelConfig(SourceFolder() + "/tests/golden/logits/" + name);
    return config.ok() ? CheckCudaModel(*config) : config.status();
  };
  for (const char* taken :
       {"falcon_7b", "gemma2", "gemma3", "glm", "gpt2", "gpt_neox", "gpt_oss", "granite",
        "llama3_sharded", "mistral_window", "mixtral", "olmo2", "phi3_window", "qwen2_moe",
        "qwen2_yarn", "qwen3_bias", "qwen3_moe", "smollm3", "starcoder2"}) {
    EXPECT_TRUE(check(taken).ok()) << check(taken);
  }
  const std::pair<const char*, const char*> refused[] = {
      {"deepseek_v2", "DeepseekV2ForCausalLM has latents of other than 512 elements"},
      {"deepseek_v3", "DeepseekV3ForCausalLM has latents of other than 512 elements"},
      {"glm4", "Glm4ForCausalLM has a partial_rotary_factor"},          // of 12 dimensions
      {"glm4_moe", "Glm4MoeForCausalLM has a partial_rotary_factor"}};  // of 12 dimensions
  for (const auto& [name, error] : refused) {
    EXPECT_EQ(check(name).code(), absl::StatusCode::kFailedPrecondition) << name;
    EXPECT_NE(Message(check(name)).find(error), std::string::npos) << check(name);
  }
}

// Each part on its own, as no family hides another part's check.
TEST(CudaRunner, RefusesEachPart) {
  const auto refused = [](const auto& change, int ranks = 1) {
    ModelConfig config = TinyConfig();
    change(config);
    return !CheckCudaModel(config, ranks).ok();
  };
  using Config = ModelConfig&;
  EXPECT_FALSE(refused([](Config) {}));
  EXPECT_TRUE(refused([](Config c) { c.hidden = 16388; }));
  EXPECT_TRUE(refused([](Config c) { c.activation = Activation::kGelu; }));
  EXPECT_TRUE(refused([](Config c) { c.names.gate = ""; }));
  EXPECT_TRUE(refused([](Config c) { c.rope.rotary_dims = 36; }));
  EXPECT_TRUE(refused([](Config c) { c.local_rope.rotary_dims = 4; }));
  const auto latents = [&](const auto& change, int ranks = 1) {
    return refused(
        [&](Config c) {
          c.latent = {.rank = 512, .plain_dims = 24, .rope_dims = 64, .value_dims = 40};
          change(c);
        },
        ranks);
  };
  EXPECT_FALSE(latents([](Config) {}));
  EXPECT_FALSE(latents([](Config) {}, 2));
  EXPECT_TRUE(latents([](Config c) { c.latent.rank = 256; }));
  EXPECT_TRUE(latents([](Config c) { c.latent.rope_dims = 32; }));
  const auto wide_norms = [](Config c) { c.qk_norm = QkNorm::kWidth; };
  EXPECT_FALSE(refused(wide_norms));
  EXPECT_TRUE(refused(wide_norms, 2));
  const auto experts = [&](const auto& change, int ranks = 1) {
    return refused(
        [&](Config c) {
          c.experts = {.count = 512, .per_token = 32};
          change(c.experts);
        },
        ranks);
  };
  using Mixture = ExpertConfig&;
  EXPECT_FALSE(experts([](Mixture) {}));
  EXPECT_FALSE(experts([](Mixture) {}, 2));
  EXPECT_TRUE(experts([](Mixture m) { m.biases = true; }));
  EXPECT_FALSE(experts([](Mixture m) { m.gate_limit = 7; }));
  EXPECT_FALSE(experts([](Mixture m) { m.biases = true, m.gate_limit = 7; }));
  EXPECT_TRUE(experts([](Mixture m) { m.gate_limit = 7, m.shared_intermediate = 64; }));
  EXPECT_FALSE(experts([](Mixture m) { m.groups = 32; }));
  EXPECT_TRUE(experts([](Mixture m) { m.groups = 64; }));
  EXPECT_TRUE(experts([](Mixture m) { m.count = 513; }));
  EXPECT_TRUE(experts([](Mixture m) { m.per_token = 33; }));
  EXPECT_TRUE(refused([](Config c) { c.latent.rank = 64; }));
}

TEST(CudaRunner, RefusesSpansByTheirPart) {
  const KvPageFormat span{.dtype = KvDtype::kI8, .span = 64};
  const auto refused = [&](const auto& change) {
    ModelConfig config = TinyConfig();
    change(config);
    EXPECT_TRUE(CheckCudaSpans({.dtype = KvDtype::kI8}, config).ok());
    return Message(CheckCudaSpans(span, config));
  };
  using Config = ModelConfig&;
  using testing::HasSubstr;
  EXPECT_EQ(refused([](Config) {}), "");
  EXPECT_EQ(refused([](Config c) { c.sliding_window = {0, 0}; }), "");
  EXPECT_THAT(refused([](Config c) { c.sliding_window = {0, 9}; }), HasSubstr("sliding windows"));
  EXPECT_THAT(refused([](Config c) { c.attention_cap = 5; }), HasSubstr("a cap of attention"));
  EXPECT_THAT(refused([](Config c) { c.attention_sinks = true; }), HasSubstr("attention sinks"));
  EXPECT_THAT(refused([](Config c) { c.latent.rank = 512; }), HasSubstr("latents"));
}

TEST(CudaRunner, RefusesStepsThatItCannotTake) {
  Both both(TinyConfig());
  Rig rig(*both.cuda_runner, 1);
  const std::vector<uint32_t> beyond = {101};
  const SequenceStep bad_token{.tokens = beyond, .blocks = rig.tables[0]};
  const absl::Status token = both.cuda_runner->Step({.sequences = {&bad_token, 1}, .kv = rig.kv});
  EXPECT_EQ(token.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_NE(Message(token).find("token 101"), std::string::npos);
  const std::vector<uint32_t> good = {1};
  const SequenceStep step{.tokens = good, .blocks = rig.tables[0]};
  rig.kv.layout.block_tokens = 24;
  const absl::Status page = both.cuda_runner->Step({.sequences = {&step, 1}, .kv = rig.kv});
  EXPECT_EQ(page.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_NE(Message(page).find("24 tokens"), std::string::npos);
}

// Hidden states of the last token, and their sum over all tokens, of some sequences of a batch:
// near the CPU's, the same in chunks, and with the logits that a step without them has.
TEST(CudaRunnerHidden, StatesAreNearTheCpusInAnyChunks) {
  const Weights weights = RandomWeights(TinyConfig(), 5, 0.2f);
  const auto device = *cuda::CudaDevice::Open(0);
  const auto gpu = *CudaRunner::Create(weights, *device, {});
  TransformerRunner cpu(weights, {}, 512);
  const std::vector<uint32_t> prompt = Prompt(30, 1), other = Prompt(7, 2);
  constexpr size_t kWidth = 64;
  struct Found {
    std::vector<float> last = std::vector<float>(kWidth);
    std::vector<double> sum = std::vector<double>(kWidth);
    std::vector<float> logits;  // of the prompt's last token
  };
  const auto run = [&](ModelRunner& runner, size_t chunk, bool alone) {
    Rig rig(runner, 2);
    Found found;
    for (size_t done = 0; done < prompt.size(); done += chunk) {
      const size_t count = std::min(chunk, prompt.size() - done);
      const bool ends = done + count == prompt.size();
      std::vector<SequenceStep> steps;
      if (!alone) {
        steps.push_back({.tokens = other, .blocks = rig.tables[1], .wants_logits = true});
      }
      steps.push_back({.tokens = std::span(prompt).subspan(done, count),
                       .position = static_cast<int32_t>(done),
                       .blocks = rig.tables[0],
                       .wants_logits = ends,
                       .hidden_sum = found.sum});
      if (ends) steps.back().hidden = found.last;
      const int64_t wanted = (alone ? 0 : 1) + (ends ? 1 : 0);
      std::vector<float> logits(static_cast<size_t>(wanted * runner.vocab()));
      const absl::Status status = runner.Step(
          {.sequences = steps, .kv = rig.kv, .logits = {logits.data(), {wanted, runner.vocab()}}});
      EXPECT_TRUE(status.ok()) << Message(status);
      found.logits.assign(logits.end() - (ends ? runner.vocab() : 0), logits.end());
    }
    return found;
  };
  const Found want = run(cpu, 30, true), got = run(*gpu, 30, true);
  EXPECT_LT(Deviation(got.last, want.last), kBf16Deviation);
  const std::vector<float> sum(got.sum.begin(), got.sum.end());
  EXPECT_LT(Deviation(sum, std::vector<float>(want.sum.begin(), want.sum.end())), kBf16Deviation);
  EXPECT_LT(Deviation(got.logits, want.logits), kBf16Deviation);
  for (const size_t chunk : {size_t{30}, size_t{13}, size_t{1}}) {
    const Found again = run(*gpu, chunk, chunk == 1);
    EXPECT_EQ(again.last, got.last) << chunk;
    EXPECT_EQ(again.sum, got.sum) << chunk;
    EXPECT_EQ(again.logits, got.logits) << chunk;
  }
  Rig rig(*gpu, 1);
  EXPECT_EQ(rig.Step({{0, prompt, 0}}), got.logits);
}

}  // namespace
}  // namespace penstock
