#include "model/forward/transformer_runner.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <numeric>
#include <random>

#include "kernels/cpu/isa.h"
#include "kernels/cpu/thread_pool.h"
#include "tests/model/forward/transformer_reference.h"

namespace penstock {
namespace {

ModelConfig TinyConfig() {
  return {.layers = 3,
          .hidden = 48,
          .intermediate = 72,  // not a multiple of 16: padded
          .heads = 4,
          .kv_heads = 2,
          .head_dim = 16,
          .vocab = 101,
          .max_position = 400};
}

ModelConfig RandomConfig(std::mt19937_64& random) {
  const auto pick = [&](std::initializer_list<int> values) {
    return *(values.begin() + random() % values.size());
  };
  ModelConfig config = TinyConfig();
  config.hidden = pick({32, 48, 66});
  config.kv_heads = pick({1, 2, 3});
  config.heads = config.kv_heads * pick({1, 2, 4});
  config.head_dim = pick({8, 16, 40});
  config.intermediate = pick({40, 64, 72});
  config.tied_embeddings = pick({0, 1}) == 1;
  config.qkv_bias = pick({0, 1}) == 1;
  config.output_bias = pick({0, 1}) == 1;
  config.mlp_bias = pick({0, 1}) == 1;
  config.qk_norm = pick({0, 1}) == 1 ? QkNorm::kHead : QkNorm::kNone;
  if (pick({0, 1}) == 1) config.sliding_window = {pick({1, 20, 70}), 0, pick({5, 64})};
  return config;
}

void AddRandomMeans(std::mt19937_64& random, Weights& weights) {
  std::normal_distribution<float> normal;
  const ModelConfig& config = weights.config;
  for (LayerWeights& layer : weights.layers) {
    layer.key_means.resize(static_cast<size_t>(config.kv_heads * config.head_dim));
    for (float& mean : layer.key_means) mean = normal(random);
  }
}

// A runner with an arena and one block table per sequence.
struct Rig {
  Rig(const Weights& of, int sequences, const Exec& exec = {}, int32_t block_tokens = 16,
      const KvPageFormat& format = {})
      : weights(of), runner(of, exec, 4096) {
    KvLayout layout = runner.kv_layout();
    layout.block_tokens = block_tokens;
    layout = layout.In(format);
    const int64_t each = layout.BlocksFor(of.config.max_position);
    memory = Buffer(static_cast<size_t>(each * sequences) * layout.BlockStride());
    std::fill_n(memory.as<Bf16>(), memory.bytes() / 2, Bf16{0x7fc0});  // NaN until written
    kv = {memory.as<std::byte>(), each * sequences, layout};
    for (int s = 0; s < sequences; ++s) {
      tables.emplace_back(static_cast<size_t>(each));
      std::iota(tables.back().begin(), tables.back().end(), static_cast<uint32_t>(s * each));
      std::shuffle(tables.back().begin(), tables.back().end(), std::mt19937_64(s));
    }
  }

  SequenceStep Chunk(int sequence, std::span<const uint32_t> tokens, size_t first, size_t last,
                     bool wants_logits) const {
    return {.tokens = tokens.subspan(first, last - first),
            .position = static_cast<int32_t>(first),
            .blocks = tables[static_cast<size_t>(sequence)],
            .wants_logits = wants_logits};
  }

  std::vector<float> Step(const std::vector<SequenceStep>& sequences) {
    int64_t rows = 0;
    for (const SequenceStep& s : sequences) rows += s.wants_logits ? 1 : 0;
    std::vector<float> logits(static_cast<size_t>(rows * weights.config.vocab));
    const absl::Status status =
        runner.Step({.sequences = sequences,
                     .kv = kv,
                     .logits = {logits.data(), {rows, weights.config.vocab}}});
    EXPECT_TRUE(status.ok()) << Message(status);
    return logits;
  }

  // Keys and values of a sequence's positions, in order, whatever blocks they are in.
  std::vector<std::byte> Cache(int sequence, int64_t positions) const {
    std::vector<std::byte> bytes;
    const KvLayout& layout = kv.layout;
    for (int64_t p = 0; p < positions; ++p) {
      const uint32_t block = tables[static_cast<size_t>(sequence)][p / layout.block_tokens];
      const int64_t slot = p % layout.block_tokens;
      for (int32_t layer = 0; layer < layout.layers; ++layer) {
        const std::byte* start = kv.Layer(block, layer);
        for (int32_t head = 0; head < layout.kv_heads; ++head) {
          for (const KvPlane plane : {KvPlane::kKeys, KvPlane::kValues}) {
            if (layout.span > 0 && layer % 2 == 1) {
              const std::byte* row = start + layout.RecentAt(head, plane, slot);
              bytes.insert(bytes.end(), row, row + layout.head_dim * 2);
              continue;
            }
            const std::byte* codes = start + layout.CodesAt(head, plane, slot);
            const std::byte* scales = start + layout.ScalesAt(head, plane, slot);
            bytes.insert(bytes.end(), codes, codes + layout.RowBytes(plane));
            bytes.insert(bytes.end(), scales, scales + layout.ScaleBytes());
          }
        }
      }
    }
    return bytes;
  }

  const Weights& weights;
  TransformerRunner runner;
  Buffer memory;
  PagedKv kv;
  std::vector<std::vector<uint32_t>> tables;
};

std::vector<uint32_t> RandomTokens(std::mt19937_64& random, const ModelConfig& config, int count) {
  std::vector<uint32_t> tokens;
  for (int i = 0; i < count; ++i) tokens.push_back(random() % static_cast<uint64_t>(config.vocab));
  return tokens;
}

class RunnerIsaTest : public testing::TestWithParam<Isa> {
 protected:
  ScopedIsa isa_{GetParam()};
};

TEST_P(RunnerIsaTest, MatchesTheReferenceForEveryFamily) {
  std::vector<ModelConfig> configs(8, TinyConfig());
  configs[1].tied_embeddings = true;
  configs[2].sliding_window = {9, 0, 9};                    // Mistral
  configs[3].qkv_bias = configs[3].tied_embeddings = true;  // Qwen2
  configs[4].qk_norm = QkNorm::kHead;                       // Qwen3
  configs[5].output_bias = configs[5].mlp_bias = true;      // Llama with biases
  configs[6].rope = {.scaling = RopeScaling::kLlama3, .factor = 8, .original_max_position = 64};
  configs[7].rope = {.scaling = RopeScaling::kYarn,
                     .factor = 4,
                     .original_max_position = 64,
                     .attention_factor = 1.1386294f};
  std::mt19937_64 random(1);
  // Keys and values on the edge between two bf16 numbers may round either way.
  const double tolerance = GetParam() == Isa::kAvx512Bf16 ? 0.12 : 2e-3;
  for (size_t i = 0; i < configs.size(); ++i) {
    // Large weights, so that attention is far from uniform.
    const Weights weights = RandomWeights(configs[i], i, 0.2f);
    const auto tokens = RandomTokens(random, configs[i], 40);
    Rig rig(weights, 1);
    const auto got = rig.Step({rig.Chunk(0, tokens, 0, tokens.size(), true)});
    const auto want = ReferenceLogits(weights, tokens);
    for (size_t v = 0; v < want.size(); ++v) {
      ASSERT_NEAR(got[v], want[v], tolerance) << "config " << i << " logit " << v;
    }
  }
}

TEST_P(RunnerIsaTest, ChunksBatchesPagesAndThreadsChangeNoBit) {
  std::mt19937_64 random(7);
  for (int trial = 0; trial < 22; ++trial) {
    ModelConfig config = RandomConfig(random);
    KvPageFormat format{.dtype = kKvDtypes[trial % std::size(kKvDtypes)]};
    if (format.dtype != KvDtype::kBf16) config.head_dim = trial % 2 == 0 ? 16 : 48;
    if (trial >= 15 && format.dtype != KvDtype::kBf16) {
      format.span = 64;
      config.sliding_window.assign(config.sliding_window.size(), 0);
    }
    Weights weights = RandomWeights(config, static_cast<uint64_t>(trial), 0.2f);
    if (format.span > 0 && trial >= 18) {
      format.centred = true;
      AddRandomMeans(random, weights);
    }
    constexpr int kSequences = 5;
    std::vector<std::vector<uint32_t>> tokens;
    for (int s = 0; s < kSequences; ++s) {
      tokens.push_back(RandomTokens(random, weights.config, 1 + static_cast<int>(random() % 200)));
    }
    // One at a time, each in one step.
    Rig alone(weights, kSequences, {}, 16, format);
    std::vector<std::vector<float>> want;
    for (int s = 0; s < kSequences; ++s) {
      want.push_back(alone.Step({alone.Chunk(s, tokens[s], 0, tokens[s].size(), true)}));
    }
    // All together: random chunks of random sequences in random order, other pages, two threads.
    ThreadPool pool(2);
    Rig mixed(weights, kSequences, {.threads = &pool}, trial % 2 == 0 ? 32 : 16, format);
    std::vector<size_t> done(kSequences, 0);
    std::vector<std::vector<float>> got(kSequences);
    for (bool any = true; any;) {
      any = false;
      std::vector<SequenceStep> step;
      std::vector<int> finishing, order(kSequences);
      std::iota(order.begin(), order.end(), 0);
      std::shuffle(order.begin(), order.end(), random);
      for (const int s : order) {
        const size_t left = tokens[s].size() - done[s];
        if (left == 0 || random() % 3 == 0) {
          any = any || left > 0;
          continue;
        }
        const size_t size = random() % 3 == 0 ? 1 : 1 + random() % left;
        const bool last = size == left;
        step.push_back(mixed.Chunk(s, tokens[s], done[s], done[s] + size, last));
        if (last) finishing.push_back(s);
        done[s] += size;
        any = true;
      }
      if (step.empty()) continue;
      const auto logits = mixed.Step(step);
      for (size_t i = 0; i < finishing.size(); ++i) {
        const auto first = logits.begin() + static_cast<int64_t>(i) * weights.config.vocab;
        got[finishing[i]] = {first, first + weights.config.vocab};
      }
    }
    for (int s = 0; s < kSequences; ++s) {
      ASSERT_EQ(got[s], want[s]) << "trial " << trial << " sequence " << s;
      const auto size = static_cast<int64_t>(tokens[s].size());
      ASSERT_EQ(mixed.Cache(s, size), alone.Cache(s, size)) << "trial " << trial;
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Isas, RunnerIsaTest, testing::ValuesIn(SupportedIsas()),
                         [](const testing::TestParamInfo<Isa>& instance) {
                           return std::string(IsaName(instance.param));
                         });

TEST(TransformerRunnerTest, AnnouncesLayersInGroupsOnceTheirPagesAreWritten) {
  const Weights weights = RandomWeights(TinyConfig(), 1);
  const std::vector<uint32_t> tokens = {5, 6, 7};
  for (const int32_t group : {0, 1, 2, 3, 7}) {
    Rig rig(weights, 1);
    const SequenceStep sequence = rig.Chunk(0, tokens, 0, 3, false);
    std::vector<std::pair<int32_t, int32_t>> calls;
    const auto written = [&](int32_t layer) {
      return rig.kv.Keys(rig.tables[0][0], layer, 0)[2 * 16].bits != 0x7fc0;
    };
    ASSERT_TRUE(rig.runner
                    .Step({.sequences = {&sequence, 1},
                           .kv = rig.kv,
                           .on_layers_done =
                               [&](int32_t first, int32_t last) {
                                 for (int32_t l = 0; l < 3; ++l) EXPECT_EQ(written(l), l < last);
                                 calls.emplace_back(first, last);
                               },
                           .layers_per_group = group})
                    .ok());
    std::vector<std::pair<int32_t, int32_t>> want;
    const int32_t step = group == 0 ? 3 : group;
    for (int32_t first = 0; first < 3; first += step) {
      want.emplace_back(first, std::min(3, first + step));
    }
    EXPECT_EQ(calls, want) << "group " << group;
  }
}

TEST(TransformerRunnerTest, RefusesHeadsThatQuantisedPagesCannotHold) {
  ModelConfig config = TinyConfig();
  config.head_dim = 40;
  const Weights weights = RandomWeights(config, 1);
  Rig rig(weights, 1, {}, 16, {.dtype = KvDtype::kI8});
  const std::vector<uint32_t> tokens = {1};
  const SequenceStep sequence = rig.Chunk(0, tokens, 0, 1, false);
  const absl::Status status = rig.runner.Step({.sequences = {&sequence, 1}, .kv = rig.kv});
  EXPECT_EQ(Message(status),
            "kv.layout is i8, this model's heads have 40 dimensions: quantised pages hold "
            "multiples of 16 up to 1024, use bf16");
}

TEST(TransformerRunnerTest, RefusesWhatIsOutOfRange) {
  const Weights weights = RandomWeights(TinyConfig(), 1);
  Rig rig(weights, 1);
  TransformerRunner small(weights, {}, 4);
  std::vector<float> logits(101);
  const std::vector<uint32_t> fine = {1, 2, 3, 4, 5}, unknown = {1, 101};
  const SequenceStep good = rig.Chunk(0, fine, 0, 5, true);
  const auto refused = [&](const SequenceStep& sequence, int64_t width = 101,
                           TransformerRunner* runner = nullptr, int32_t layers = 3) {
    PagedKv kv = rig.kv;
    kv.layout.layers = layers;
    const absl::Status status =
        (runner == nullptr ? rig.runner : *runner)
            .Step({.sequences = {&sequence, 1}, .kv = kv, .logits = {logits.data(), {1, width}}});
    return status.ok() ? std::string() : Message(status);
  };
  EXPECT_EQ(refused(good), "");
  SequenceStep bad = good;
  bad.tokens = unknown;
  EXPECT_EQ(refused(bad), "sequence 0 has token 101, the vocabulary has 101");
  bad = good;
  bad.tokens = {};
  EXPECT_EQ(refused(bad), "sequence 0 has no tokens, it needs at least one");
  bad = good;
  bad.position = 396;
  EXPECT_EQ(refused(bad), "sequence 0 has positions [396, 401), the model's limit is 400");
  bad.position = -1;
  EXPECT_EQ(refused(bad), "sequence 0 has positions [-1, 4), the model's limit is 400");
  bad = good;
  bad.position = 30;
  bad.blocks = bad.blocks.first(2);
  EXPECT_EQ(refused(bad), "sequence 0 has a table of 2 blocks, 35 positions need 3");
  const std::vector<uint32_t> outside = {25};
  bad = good;
  bad.blocks = outside;
  EXPECT_EQ(refused(bad), "sequence 0 names block 25, the arena has 25");
  EXPECT_EQ(refused(good, 100), "logits must be [1, 101], they are [1, 100]");
  EXPECT_EQ(refused(good, 101, &small),
            "the step has 5 tokens, the limit is 4: use smaller chunks");
  EXPECT_EQ(refused(good, 101, nullptr, 2),
            "kv.layout is not this model's: 3 layers, 2 kv heads of 16");
}

TEST(TransformerRunnerTest, CentredKeysNeedMeans) {
  const Weights weights = RandomWeights(TinyConfig(), 1);
  Rig rig(weights, 1, {}, 16, {.dtype = KvDtype::kI8, .span = 64, .centred = true});
  const std::vector<uint32_t> tokens = {1};
  const SequenceStep step = rig.Chunk(0, tokens, 0, 1, false);
  EXPECT_EQ(Message(rig.runner.Step({.sequences = {&step, 1}, .kv = rig.kv})),
            "kv.layout has centred keys, and the weights have no means of keys");
}

// The logits behind 200 tokens in pages of a format.
std::vector<float> LogitsIn(const KvPageFormat& format, const Weights& weights) {
  std::mt19937_64 random(11);
  const std::vector<uint32_t> tokens = RandomTokens(random, weights.config, 200);
  Rig rig(weights, 1, {}, 16, format);
  return rig.Step({rig.Chunk(0, tokens, 0, tokens.size(), true)});
}

TEST(TransformerRunnerTest, MeansOfZeroChangeNoBit) {
  Weights weights = RandomWeights(TinyConfig(), 3, 0.2f);
  const auto keys =
      static_cast<size_t>(weights.config.kv_heads) * static_cast<size_t>(weights.config.head_dim);
  for (LayerWeights& layer : weights.layers) layer.key_means.assign(keys, 0.0f);
  for (const KvDtype dtype : {KvDtype::kI8, KvDtype::kK3v2}) {
    EXPECT_EQ(LogitsIn({.dtype = dtype, .span = 64}, weights),
              LogitsIn({.dtype = dtype, .span = 64, .centred = true}, weights));
  }
}

TEST(TransformerRunnerTest, SpansGoWithPositions) {
  ModelConfig config = TinyConfig();
  const Weights weights = RandomWeights(config, 1);
  Rig rig(weights, 1, {}, 16, {.dtype = KvDtype::kI8, .span = 64});
  const std::vector<uint32_t> tokens = {1};
  const auto refused = [&](const SequenceStep& sequence) {
    return Message(rig.runner.Step({.sequences = {&sequence, 1}, .kv = rig.kv}));
  };
  SequenceStep step = rig.Chunk(0, tokens, 0, 1, false);
  step.position = 40;
  step.evicted = 16;
  EXPECT_EQ(refused(step), "sequence 0 has 16 evicted positions, it may have 0 to 0");
  config.sliding_window.assign(static_cast<size_t>(config.layers), 32);
  const Weights windows = RandomWeights(config, 1);
  TransformerRunner runner(windows, {}, 8);
  const SequenceStep plain = rig.Chunk(0, tokens, 0, 1, false);
  const absl::Status status = runner.Step({.sequences = {&plain, 1}, .kv = rig.kv});
  EXPECT_EQ(Message(status),
            "kv.layout has a span of 64 tokens, which models with sliding windows or latents do "
            "not take");
}

}  // namespace
}  // namespace penstock
