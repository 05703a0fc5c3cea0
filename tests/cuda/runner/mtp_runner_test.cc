// The layer for multi-token prediction on emulated GPUs, beside the CPU.

#include <gtest/gtest.h>

#include <cstring>
#include <string>
#include <utility>

#include "model/check/mtp_check.h"
#include "model/cuda/mtp/mtp_rows.h"
#include "model/forward/runner_check.h"
#include "model/sampler/token_draw.h"
#include "tests/cuda/runner/degrees_rig.h"
#include "tests/support/environment.h"

namespace penstock {
namespace {

constexpr double kLimit = 2.5e-2;  // of rounding: activations are bf16 on GPUs

// Small weights like a golden checkpoint's, with the layer.
Weights WeightsLike(const std::string& name) {
  ModelConfig config = *LoadModelConfig(SourceFolder() + "/tests/golden/logits/" + name);
  config.use_mtp = true;
  if (config.HasLatents()) {
    config.latent.rank = 512;
    config.latent.rope_dims = 64;
    config.head_dim = config.latent.rank + config.latent.rope_dims;
    config.rope.rotary_dims = config.latent.rope_dims;
    config.rope.divisors.assign(static_cast<size_t>(config.latent.rope_dims / 2), 3.0f);
  } else {
    config.head_dim = 64;
    if (config.rope.rotary_dims != 0) config.rope.rotary_dims = 24;
  }
  Weights weights = SmallWeightsLike(config, /*gpus=*/2);
  MakeMtpClear(weights);
  return weights;
}

// A sequence of a rig, whose tokens' keys and values are computed with those of the layer.
class Prefilled {
 public:
  Prefilled(Rig& rig, int sequence)
      : rig_(rig), sequence_(sequence), hidden_(static_cast<size_t>(rig.runner().hidden_size())) {}

  // The next chunk of its prompt.
  SequenceStep Chunk(std::span<const uint32_t> tokens) {
    const SequenceStep step{.tokens = tokens,
                            .position = position_,
                            .blocks = rig_.Table(sequence_),
                            .prompt = true,
                            .hidden = hidden_,
                            .fills_mtp = true,
                            .before = position_ == 0 ? std::span<const float>() : hidden_};
    position_ += static_cast<int32_t>(tokens.size());
    return step;
  }
  std::vector<float>& hidden() { return hidden_; }  // behind the last token
  int32_t position() const { return position_; }
  std::span<const uint32_t> table() const { return rig_.Table(sequence_); }

 private:
  Rig& rig_;
  const int sequence_;
  int32_t position_ = 0;
  std::vector<float> hidden_;
};

// Returns the logits that `steps` want.
std::vector<float> StepOn(Rig& rig, const std::vector<SequenceStep>& steps, bool mtp = false,
                          std::span<DrawnToken> drawn = {}) {
  ModelRunner& runner = rig.runner();
  int64_t wanted = 0;
  for (const SequenceStep& step : steps) wanted += step.wants_logits ? 1 : 0;
  std::vector<float> logits(static_cast<size_t>(wanted * runner.vocab()));
  const StepArgs args{.sequences = steps,
                      .kv = rig.kv(),
                      .logits = {logits.data(), {wanted, runner.vocab()}},
                      .drawn = drawn,
                      .on_layers_done = mtp ? nullptr : rig.on_layers_done,
                      .layers_per_group = 2,
                      .on_queries = mtp ? nullptr : rig.on_queries,
                      .observed = rig.observed};
  const absl::Status status = mtp ? runner.mtp()->StepMtp(args) : runner.Step(args);
  EXPECT_EQ(Message(status), "");
  return logits;
}

struct Guessed {
  std::vector<float> logits, hidden;
};

// The layer's outputs for tokens behind a sequence. All but the first take the layer's own hidden
// state.
std::vector<Guessed> GuessBehind(Rig& rig, Prefilled& sequence,
                                 const std::vector<uint32_t>& tokens) {
  std::vector<Guessed> guesses;
  std::vector<float> before = sequence.hidden();
  for (size_t i = 0; i < tokens.size(); ++i) {
    Guessed& guess = guesses.emplace_back();
    guess.hidden.resize(before.size());
    guess.logits = StepOn(rig,
                          {{.tokens = std::span(tokens).subspan(i, 1),
                            .position = sequence.position() + static_cast<int32_t>(i),
                            .blocks = sequence.table(),
                            .wants_logits = true,
                            .hidden = guess.hidden,
                            .before = before}},
                          true);
    before = guess.hidden;
  }
  return guesses;
}

// The layer's keys and values of a sequence's first tokens, in bf16.
std::vector<float> LayerOf(const Rig& rig, int sequence, int64_t tokens) {
  const KvLayout& layout = rig.kv().layout;
  std::vector<float> values;
  const std::vector<std::byte> pages = rig.Pages(sequence);
  const size_t page_bytes = layout.PayloadBytes(), layer_bytes = page_bytes / layout.layers;
  const size_t planes = static_cast<size_t>(layout.Planes() * layout.kv_heads);
  const size_t token_bytes = layer_bytes / planes / static_cast<size_t>(layout.block_tokens);
  for (int64_t token = 0; token < tokens; ++token) {
    const size_t block = static_cast<size_t>(token / layout.block_tokens);
    const size_t slot = static_cast<size_t>(token % layout.block_tokens);
    for (size_t plane = 0; plane < planes; ++plane) {
      const std::byte* at = pages.data() + (block + 1) * page_bytes - layer_bytes +
                            plane * layer_bytes / planes + slot * token_bytes;
      for (size_t i = 0; i < token_bytes; i += sizeof(Bf16)) {
        Bf16 value;
        std::memcpy(&value, at + i, sizeof(value));
        values.push_back(ToFloat(value));
      }
    }
  }
  return values;
}

const std::vector<uint32_t>& Text() {
  static const std::vector<uint32_t> text = Prompt(70, 4);
  return text;
}

// Computes Text() in chunks of these sizes.
void FillChunks(Rig& rig, Prefilled& sequence, const std::vector<size_t>& chunks) {
  size_t done = 0;
  for (const size_t chunk : chunks) {
    SequenceStep step = sequence.Chunk(std::span(Text()).subspan(done, chunk));
    step.wants_logits = done % 2 == 1;
    StepOn(rig, {step});
    done += chunk;
  }
  ASSERT_EQ(done, Text().size());
}

class CudaMtpTest : public testing::TestWithParam<const char*> {
 protected:
  CudaMtpTest() : weights_(WeightsLike(GetParam())) {}

  // The results that a rig computes of the text.
  struct Result {
    std::vector<Guessed> guesses;
    std::vector<float> layer;
  };
  static Result Of(Rig& rig, const std::vector<size_t>& chunks) {
    Prefilled sequence(rig, 1);
    FillChunks(rig, sequence, chunks);
    Result result{.guesses = GuessBehind(rig, sequence, {7, 30, 101})};
    result.layer = LayerOf(rig, 1, std::ssize(Text()) + 3);
    return result;
  }
  static void ExpectNear(const Result& got, const Result& want, double limit) {
    for (size_t i = 0; i < want.guesses.size(); ++i) {
      EXPECT_LT(Deviation(got.guesses[i].logits, want.guesses[i].logits), limit) << i;
      EXPECT_LT(Deviation(got.guesses[i].hidden, want.guesses[i].hidden), limit) << i;
    }
    EXPECT_LT(Deviation(got.layer, want.layer), limit);
  }

  const ScopedEnvironment gpus_{"PENSTOCK_EMULATED_GPUS", "2"};
  Weights weights_;
};

TEST_P(CudaMtpTest, AgreesWithTheCpu) {
  CpuRig cpu(weights_);
  OneGpuRig gpu(weights_);
  EXPECT_EQ(gpu.kv().layout.layers, 3);
  const Result want = Of(cpu, {70}), got = Of(gpu, {70});
  ExpectNear(got, want, kLimit);
}

// The check when a worker starts (scripts/cuda-mutants breaks the layer for it).
TEST_P(CudaMtpTest, TheCheckAtStartPasses) {
  CpuRig cpu(weights_);
  OneGpuRig gpu(weights_);
  EXPECT_EQ(Message(CheckMtp({gpu.runner(), gpu.kv()}, {cpu.runner(), cpu.kv()})), "");
}

TEST_P(CudaMtpTest, AgreesOnTwoGpus) {
  CpuRig cpu(weights_);
  ManyGpusRig gpus(weights_, 2);
  EXPECT_EQ(gpus.kv().layout.layers, 3);
  const Result want = Of(cpu, {70}), got = Of(gpus, {33, 37});
  ExpectNear(got, want, kLimit);
}

TEST_P(CudaMtpTest, MistakesShow) {
  CpuRig cpu(weights_);
  const Result want = Of(cpu, {70});
  const auto off = [&] {
    OneGpuRig gpu(weights_);
    return Deviation(Of(gpu, {70}).guesses[0].logits, want.guesses[0].logits);
  };
  MtpWeights& mtp = *weights_.mtp;
  std::swap(mtp.token_norm, mtp.hidden_norm);
  EXPECT_GT(off(), 2 * kLimit);
  std::swap(mtp.token_norm, mtp.hidden_norm);
  std::swap(mtp.norm, weights_.final_norm);
  EXPECT_GT(off(), 2 * kLimit);
  std::swap(mtp.norm, weights_.final_norm);
  OneGpuRig gpu(weights_);
  Prefilled sequence(gpu, 1);
  FillChunks(gpu, sequence, {70});
  sequence.hidden().assign(sequence.hidden().size(), 0.25f);
  EXPECT_GT(Deviation(GuessBehind(gpu, sequence, {7})[0].logits, want.guesses[0].logits),
            2 * kLimit);
}

// Whatever the chunks of a prompt are, and whatever is beside them.
TEST_P(CudaMtpTest, ChunksChangeNoBit) {
  OneGpuRig one(weights_);
  const Result want = Of(one, {70});
  for (const std::vector<size_t>& chunks :
       {std::vector<size_t>{1, 30, 1, 38}, {16, 16, 16, 16, 6}, {69, 1}}) {
    OneGpuRig gpu(weights_);
    const Result got = Of(gpu, chunks);
    EXPECT_EQ(got.layer, want.layer);
    for (size_t i = 0; i < want.guesses.size(); ++i) {
      EXPECT_EQ(got.guesses[i].logits, want.guesses[i].logits);
      EXPECT_EQ(got.guesses[i].hidden, want.guesses[i].hidden);
    }
    EXPECT_EQ(gpu.Pages(1), one.Pages(1));
  }
}

// Sequences of all kinds in one step: an answer's token, a prompt without the layer, one whose
// hidden states are added up, and prompts with the layer.
TEST_P(CudaMtpTest, OtherSequencesChangeNoBit) {
  OneGpuRig alone(weights_), beside(weights_);
  const Result want = Of(alone, {20, 50});
  const std::vector<uint32_t> others = Prompt(30, 9);
  Prefilled second(beside, 2), sequence(beside, 1);
  std::vector<double> sum(sequence.hidden().size()), sum_alone(sum.size());
  std::vector<float> last(sequence.hidden().size());
  const std::span<const uint32_t> table = beside.Table(0);
  const auto summed = [&](std::vector<double>& to) {
    return SequenceStep{.tokens = std::span(others).first(5), .blocks = table, .hidden_sum = to};
  };
  StepOn(beside, {summed(sum_alone)});
  const auto first = StepOn(beside, {summed(sum), second.Chunk(std::span(others).first(11)),
                                     sequence.Chunk(std::span(Text()).first(20))});
  EXPECT_TRUE(first.empty());
  EXPECT_EQ(sum, sum_alone);
  SequenceStep rest = sequence.Chunk(std::span(Text()).subspan(20));
  rest.wants_logits = true;
  const std::vector<float> logits =
      StepOn(beside, {{.tokens = std::span(others).subspan(5, 1),
                       .position = 5,
                       .blocks = table,
                       .wants_logits = true,
                       .hidden = last},
                      {.tokens = std::span(others).subspan(6, 4), .position = 6, .blocks = table},
                      second.Chunk(std::span(others).subspan(11)),
                      rest});
  EXPECT_EQ(LayerOf(beside, 1, 70), LayerOf(alone, 1, 70));
  EXPECT_EQ(GuessBehind(beside, sequence, {7})[0].logits, want.guesses[0].logits);
  // The answers are those of the same steps without the layer.
  OneGpuRig plain(weights_);
  StepOn(plain, {{.tokens = Text(), .blocks = plain.Table(1)},
                 {.tokens = std::span(others).first(5), .blocks = plain.Table(0)}});
  const std::vector<uint32_t> token = {Text().back()};
  const std::vector<float> both = StepOn(
      plain, {{.tokens = std::span(others).subspan(5, 1),
               .position = 5,
               .blocks = plain.Table(0),
               .wants_logits = true},
              {.tokens = token, .position = 69, .blocks = plain.Table(1), .wants_logits = true}});
  EXPECT_EQ(logits, both);
}

// A prompt whose tokens have logits is a part for each token. Each takes the hidden state of the
// part before it.
TEST_P(CudaMtpTest, PartsOfAStepFollowEachOther) {
  OneGpuRig whole(weights_), parts(weights_);
  const Result want = Of(whole, {70});
  std::vector<SequenceStep> steps;
  for (size_t i = 0; i < Text().size(); ++i) {
    steps.push_back({.tokens = std::span(Text()).subspan(i, 1),
                     .position = static_cast<int32_t>(i),
                     .blocks = parts.Table(1),
                     .wants_logits = true,
                     .fills_mtp = true});
  }
  std::vector<std::pair<int32_t, int32_t>> groups;
  parts.on_layers_done = [&](int32_t first, int32_t last) { groups.emplace_back(first, last); };
  StepOn(parts, steps);
  EXPECT_EQ(groups, (std::vector<std::pair<int32_t, int32_t>>{{0, 2}, {2, 3}}));
  EXPECT_EQ(LayerOf(parts, 1, 70), LayerOf(whole, 1, 70));
}

// Several tokens of several sequences in one step of the layer, with draws on the device.
TEST_P(CudaMtpTest, DrawsFromTheGuessesOfABatch) {
  OneGpuRig gpu(weights_);
  Prefilled first(gpu, 0), second(gpu, 2);
  StepOn(gpu, {first.Chunk(std::span(Text()).first(20)), second.Chunk(std::span(Text()).first(9))});
  // States before three tokens of the first and one of the second.
  std::vector<float> states = first.hidden();
  states.insert(states.end(), second.hidden().begin(), second.hidden().end());
  states.insert(states.end(), first.hidden().begin(), first.hidden().end());
  const std::vector<uint32_t> tokens = {5, 17, 40}, token = {3};
  const auto step = [&](bool alone) {
    return SequenceStep{.tokens = tokens,
                        .position = 20,
                        .blocks = gpu.Table(0),
                        .wants_logits = alone,
                        .before = states};
  };
  std::vector<float> logits = StepOn(gpu, {step(true)}, true);
  const DrawSpec greedy{.temperature = 0}, random{.temperature = 2, .random = uint64_t{3} << 62};
  std::vector<DrawSpec> draws = {greedy, random};
  SequenceStep drawing = step(false);
  drawing.draws = draws;
  std::vector<DrawnToken> drawn(2);
  std::vector<float> other =
      StepOn(gpu,
             {{.tokens = token, .position = 9, .blocks = gpu.Table(2), .before = second.hidden()},
              drawing},
             true, drawn);
  EXPECT_TRUE(other.empty());
  for (size_t i = 0; i < draws.size(); ++i) {
    std::vector<float> row = logits;
    EXPECT_EQ(drawn[i].id, DrawToken(row, draws[i]));
  }
}

TEST_P(CudaMtpTest, NamesWrongArguments) {
  OneGpuRig gpu(weights_);
  const std::vector<uint32_t> token = {3};
  std::vector<float> hidden(static_cast<size_t>(gpu.runner().hidden_size()));
  const SequenceStep without{.tokens = token, .blocks = gpu.Table(0)};
  const absl::Status none =
      gpu.runner().mtp()->StepMtp({.sequences = {&without, 1}, .kv = gpu.kv()});
  EXPECT_EQ(none.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_NE(Message(none).find("numbers of the tokens before"), std::string::npos);
  const SequenceStep outside{.tokens = token, .blocks = gpu.Table(0).first(0), .before = hidden};
  EXPECT_EQ(gpu.runner().mtp()->StepMtp({.sequences = {&outside, 1}, .kv = gpu.kv()}).code(),
            absl::StatusCode::kInvalidArgument);
}

INSTANTIATE_TEST_SUITE_P(Models, CudaMtpTest, testing::Values("deepseek_v3_mtp", "glm4_moe_mtp"),
                         [](const auto& tested) { return std::string(tested.param); });

// A step of one token for each sequence whose hidden states are returned, as those of a worker that
// guesses with the layer are, is a graph.
TEST(CudaMtpGraphs, TakeHiddenStates) {
  const Weights weights = WeightsLike("glm4_moe_mtp");
  OneGpuRig graphs(weights), none(weights, KvDtype::kBf16, {.graphs_max = 0});
  const std::vector<uint32_t> prompt = Prompt(9, 3);
  for (Rig* rig : {static_cast<Rig*>(&graphs), static_cast<Rig*>(&none)}) {
    StepOn(*rig, {{.tokens = prompt, .blocks = rig->Table(0)},
                  {.tokens = prompt, .blocks = rig->Table(1)},
                  {.tokens = prompt, .blocks = rig->Table(2)}});
  }
  const auto step = [&](Rig& rig, const std::vector<uint32_t>& tokens, int32_t position,
                        std::vector<float>& hidden) {
    const size_t width = hidden.size() / 3;
    std::vector<SequenceStep> steps;
    for (size_t i = 0; i < 3; ++i) {
      // The second one returns none.
      steps.push_back(
          {.tokens = std::span(tokens).subspan(i, 1),
           .position = position,
           .blocks = rig.Table(static_cast<int>(i)),
           .wants_logits = true,
           .hidden = i == 1 ? std::span<float>() : std::span(hidden).subspan(i * width, width)});
    }
    return StepOn(rig, steps);
  };
  const size_t width = static_cast<size_t>(graphs.runner().hidden_size());
  for (int32_t i = 0; i < 4; ++i) {
    const std::vector<uint32_t> tokens = Prompt(3, 50 + static_cast<uint32_t>(i));
    std::vector<float> got(3 * width), want(3 * width);
    EXPECT_EQ(step(graphs, tokens, 9 + i, got), step(none, tokens, 9 + i, want));
    EXPECT_EQ(got, want);
    EXPECT_NE(got, std::vector<float>(3 * width));
  }
  EXPECT_GT(dynamic_cast<CudaRunner&>(graphs.runner()).graphs().launches(), 0);
}

// numerics=fast: all rows of a prompt pass the last layer, and its answer is that without the
// layer.
TEST(CudaMtpFastPrompts, TheLayerChangesNoBit) {
  const ScopedEnvironment hopper("PENSTOCK_EMULATED_HOPPER", "1");
  const Weights weights = WeightsLike("glm4_moe_mtp");
  OneGpuRig rig(weights, KvDtype::kBf16, {.fast_prompts = true});
  Prefilled sequence(rig, 1);
  StepOn(rig, {sequence.Chunk(std::span(Text()).first(30))});
  SequenceStep rest = sequence.Chunk(std::span(Text()).subspan(30));
  rest.wants_logits = true;
  const std::vector<float> logits = StepOn(rig, {rest});
  EXPECT_EQ(
      logits,
      StepOn(rig,
             {{.tokens = Text(), .blocks = rig.Table(2), .prompt = true, .wants_logits = true}}));
  CpuRig cpu(weights);
  Prefilled other(cpu, 1);
  StepOn(cpu, {other.Chunk(Text())});
  EXPECT_LT(
      Deviation(GuessBehind(rig, sequence, {7})[0].logits, GuessBehind(cpu, other, {7})[0].logits),
      kLimit);
}

// A runner with pages of any format.
class FormatRig final : public Rig {
 public:
  FormatRig(const Weights& weights, const KvPageFormat& format)
      : device_(*cuda::CudaDevice::Open(0)),
        runner_(*CudaRunner::Create(weights, *device_, {})),
        pages_(*cuda::CudaPages::Create(*device_, runner_->kv_layout().In(format), kBlocks)) {
    SetPages(pages_->view());
  }
  ModelRunner& runner() override { return *runner_; }

 private:
  std::unique_ptr<cuda::CudaDevice> device_;
  std::unique_ptr<CudaRunner> runner_;
  std::unique_ptr<cuda::CudaPages> pages_;
};

// Pages with codes of few bits, with a span of recent tokens in bf16, and with centred keys, of
// which the layer has no means.
TEST(CudaMtpFormats, ChunksChangeNoBit) {
  Weights weights = WeightsLike("glm4_moe_mtp");
  AddRandomMeans(weights);
  CpuRig cpu(weights);
  Prefilled of_cpu(cpu, 1);
  StepOn(cpu, {of_cpu.Chunk(Text())});
  const std::vector<float> near = GuessBehind(cpu, of_cpu, {7})[0].logits;
  for (const char* name : {"i8", "k3v3+64", "k3v3c+64"}) {
    SCOPED_TRACE(name);
    const KvPageFormat format = *KvPageFormatOf(name);
    FormatRig whole(weights, format), chunks(weights, format);
    Prefilled one(whole, 1), several(chunks, 1);
    FillChunks(whole, one, {70});
    FillChunks(chunks, several, {17, 1, 52});
    const std::vector<Guessed> want = GuessBehind(whole, one, {7, 30}),
                               got = GuessBehind(chunks, several, {7, 30});
    for (size_t i = 0; i < want.size(); ++i) {
      EXPECT_EQ(got[i].logits, want[i].logits);
      EXPECT_EQ(got[i].hidden, want[i].hidden);
    }
    EXPECT_LT(Deviation(want[0].logits, near), 0.3);
  }
}

// Beside an eviction, for which the step returns its queries layer by layer.
TEST(CudaMtpEvictions, QueriesChangeNoBit) {
  const Weights weights = WeightsLike("glm4_moe_mtp");
  OneGpuRig plain(weights), observed(weights, KvDtype::kBf16, {.evicts = true});
  std::vector<int32_t> queried;
  std::vector<std::pair<int32_t, int32_t>> groups;
  observed.on_queries = [&](int32_t layer, View<const float, 2>) { queried.push_back(layer); };
  observed.on_layers_done = [&](int32_t first, int32_t last) { groups.emplace_back(first, last); };
  std::vector<float> hidden;
  for (Rig* rig : {static_cast<Rig*>(&plain), static_cast<Rig*>(&observed)}) {
    Prefilled sequence(*rig, 1);
    StepOn(*rig, {sequence.Chunk(Text())});
    if (rig == &plain) hidden = sequence.hidden();
    EXPECT_EQ(sequence.hidden(), hidden);
  }
  EXPECT_EQ(queried, (std::vector<int32_t>{0, 1}));
  EXPECT_EQ(groups, (std::vector<std::pair<int32_t, int32_t>>{{0, 2}, {2, 3}}));
  EXPECT_EQ(LayerOf(observed, 1, 70), LayerOf(plain, 1, 70));
}

TEST(MtpRows, TakeTheStateBeforeEach) {
  const std::vector<uint32_t> tokens = {1, 2, 3}, blocks = {0};
  const std::vector<float> before = {5, 6};
  const SequenceStep first{
      .tokens = tokens, .position = 4, .blocks = blocks, .fills_mtp = true, .before = before};
  const SequenceStep next{.tokens = tokens, .position = 7, .blocks = blocks, .fills_mtp = true};
  const SequenceStep apart{.tokens = tokens, .position = 9, .blocks = blocks, .fills_mtp = true};
  MtpRows rows;
  rows.Add(first, nullptr, 10, 2, 2);
  rows.Add(next, &first, 13, 5, 2);
  rows.Add(apart, &next, 16, 8, 2);
  EXPECT_EQ(rows.rows(), (std::vector<int32_t>{10, 11, 12, 13, 14, 15, 16, 17, 18}));
  EXPECT_EQ(rows.states(), (std::vector<uint32_t>{0, 2, 3, 4, 5, 6, 0, 8, 9}));
  ASSERT_EQ(rows.given().size(), 2u);
  EXPECT_EQ(rows.given()[0].first, 0);
  EXPECT_EQ(rows.given()[1].first, 6);
  EXPECT_EQ(rows.before(), (std::vector<float>{5, 6, 0, 0}));
  EXPECT_EQ(MtpRows::JoinedOrder(3), (std::vector<int32_t>{0, 3, 1, 4, 2, 5}));
}

}  // namespace
}  // namespace penstock
