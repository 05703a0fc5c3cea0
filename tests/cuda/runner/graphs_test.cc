// Graphs of decode steps on the emulated device: what is captured, and that no bit depends on it.

#include <gtest/gtest.h>

#include <cstring>
#include <string>

#include "model/cuda/cuda_runner.h"
#include "tests/cuda/emulator/emulated_stream.h"
#include "tests/cuda/runner/runner_rig.h"

namespace penstock {
namespace {

// A counter in page-locked and one in device memory, and a stream.
class CaptureTest : public testing::Test {
 protected:
  CaptureTest()
      : stream_(cuda::CreateStream(true)),
        here_(*cuda::PinnedBuffer::Create(4, "test")),
        there_(*cuda::DeviceBuffer::Create(4, "test")) {}
  ~CaptureTest() override { cuda::DestroyStream(stream_); }

  void* CopyGraph() {
    cuda::BeginCapture(stream_);
    cuda::CopyOnDevice(there_.as<void>(), here_.as<void>(), 4, stream_);
    return cuda::EndCapture(stream_);
  }
  // The device's counter now, whatever is waiting on the stream.
  int there() const {
    int value = 0;
    cuda::CopyToHost(&value, there_.as<void>(), sizeof(value), nullptr);
    return value;
  }

  void* stream_;
  cuda::PinnedBuffer here_;
  cuda::DeviceBuffer there_;
};

TEST_F(CaptureTest, RunsWhenItIsLaunchedWithWhatIsThereThen) {
  int& here = *here_.as<int>();
  here = 1;
  void* graph = CopyGraph();
  cuda::Synchronize(stream_);
  EXPECT_EQ(there(), -1);  // as device memory begins
  for (const int value : {5, 6}) {
    here = value;
    cuda::LaunchGraph(graph, stream_);
    EXPECT_NE(there(), value);
    cuda::Synchronize(stream_);
    EXPECT_EQ(there(), value);
  }
  cuda::DestroyGraph(graph);
}

TEST_F(CaptureTest, WhatARealCaptureForbidsIsFatal) {
  const auto dies = [&](const auto& action, const char* what) {
    EXPECT_DEATH(
        {
          cuda::BeginCapture(stream_);
          action();
        },
        what);
  };
  int pageable = 0;
  void* other = cuda::CreateStream(true);
  void* event = cuda::CreateEvent();
  dies([&] { cuda::Synchronize(stream_); }, "Synchronize");
  dies([&] { cuda::Synchronize(other); }, "Synchronize");
  dies([&] { cuda::AllocateDevice(4); }, "AllocateDevice");
  dies([&] { cuda::AllocatePinned(4); }, "AllocatePinned");
  dies([&] { there_ = cuda::DeviceBuffer(); }, "");
  dies([&] { cuda::CopyToDevice(there_.as<void>(), &pageable, 4, stream_); }, "pageable");
  dies([&] { cuda::CopyToHost(&pageable, there_.as<void>(), 4, stream_); }, "pageable");
  dies([&] { cuda::FillDevice(there_.as<void>(), 0, 4, other); }, "another stream");
  dies([&] { cuda::FillDevice(there_.as<void>(), 0, 4, nullptr); }, "default stream");
  dies([&] { cuda::RecordEvent(event, stream_); }, "RecordEvent");
  dies([&] { cuda::SynchronizeEvent(event); }, "SynchronizeEvent");
  cuda::DestroyEvent(event);
  cuda::DestroyStream(other);
}

TEST_F(CaptureTest, AGraphUnderWayIsNotToBeDestroyed) {
  void* graph = CopyGraph();
  cuda::LaunchGraph(graph, stream_);
  EXPECT_DEATH(cuda::DestroyGraph(graph), "under_way");
  cuda::Synchronize(stream_);
  cuda::DestroyGraph(graph);
}

CudaGraphKey Rows(int32_t rows) { return {.shape = {.all = {.rows = rows}}}; }

TEST_F(CaptureTest, AShapeIsCapturedWhenItComesAgain) {
  CudaGraphs graphs(2, stream_);
  int calls = 0;
  int& here = *here_.as<int>();
  const auto run = [&](int32_t rows) {
    ++here;
    graphs.Run(Rows(rows), [&] {
      ++calls;
      cuda::CopyOnDevice(there_.as<void>(), here_.as<void>(), 4, stream_);
    });
    cuda::Synchronize(stream_);
    EXPECT_EQ(there(), here);
    return calls;
  };
  EXPECT_EQ(run(1), 1);
  EXPECT_EQ(run(1), 2);  // into a graph
  EXPECT_EQ(run(1), 2);
  EXPECT_EQ(run(2), 3);
  EXPECT_EQ(run(1), 3);
  EXPECT_EQ(graphs.made(), 1);
  EXPECT_EQ(graphs.launches(), 3);
  EXPECT_EQ(run(3), 4);  // 2 has not been used for longest
  EXPECT_EQ(graphs.size(), 2u);
  EXPECT_EQ(run(1), 4);
  EXPECT_EQ(run(2), 5);
  EXPECT_EQ(run(2), 6);
  graphs.Clear();
  EXPECT_EQ(graphs.size(), 0u);
  EXPECT_EQ(run(1), 7);
}

TEST_F(CaptureTest, WhereThereIsNoGraphStepsGoOn) {
  CudaGraphs graphs(2, stream_);
  int calls = 0;
  const auto run = [&](int32_t rows) { graphs.Run(Rows(rows), [&] { ++calls; }); };
  run(1);
  cuda::emulator::RefuseNextGraph();
  run(1);
  EXPECT_EQ(calls, 3);  // captured in vain
  run(1);
  run(2);
  run(2);
  EXPECT_EQ(calls, 6);
  EXPECT_EQ(graphs.made(), 0);
  EXPECT_EQ(graphs.launches(), 0);
}

// Steps of one shape have arrays of the same sizes: sequences of about the same lengths.
TEST(CudaBatch, IsPaddedToItsShape) {
  const KvLayout layout{.layers = 1, .kv_heads = 1, .head_dim = 64};
  const std::vector<uint32_t> blocks(300, 1);
  const auto pad = [&](const std::vector<int32_t>& positions) {
    const std::vector<uint32_t> token = {3};
    std::vector<SequenceStep> steps;
    for (const int32_t position : positions) {
      steps.push_back(
          {.tokens = token, .position = position, .blocks = blocks, .wants_logits = true});
    }
    CudaBatch batch({.sequences = steps, .kv = {.arena = nullptr, .blocks = 300, .layout = layout}},
                    /*hidden=*/64, /*group=*/2);
    EXPECT_TRUE(batch.paddable());
    const CudaBatchShape padded = batch.PaddedShape(512);
    const CudaAttentionShape& shape = padded.all;
    batch.PadTo(padded);
    const CudaAttention& all = batch.all;
    EXPECT_EQ(batch.PaddedShape(512), padded);
    EXPECT_EQ(all.tables.size(), static_cast<size_t>(shape.rows * shape.table_stride));
    EXPECT_EQ(all.table_stride, shape.table_stride);
    EXPECT_EQ(all.sequences.size(), static_cast<size_t>(shape.rows));
    EXPECT_EQ(batch.arrays.slots.back(), -1);
    EXPECT_EQ(batch.draws.size(), static_cast<size_t>(shape.rows));
    EXPECT_TRUE(all.plan.wide.empty());
    EXPECT_EQ(all.plan.narrow.size(), static_cast<size_t>(shape.rows));
    EXPECT_LT(all.plan.narrow.back().sequence, 0);
    EXPECT_EQ(all.plan.items.size(), static_cast<size_t>(shape.items));
    return shape;
  };
  EXPECT_EQ(pad({2100, 1, 300}), pad({2200, 9, 400}));
  EXPECT_FALSE(pad({2100, 1, 300}) == pad({4000, 1, 300}));
  EXPECT_EQ(pad(std::vector<int32_t>(17, 5)).rows, 24);
}

// A token of many heads that share a key has several narrow tiles.
TEST(CudaBatch, PadsTheTilesOfManyHeads) {
  const KvLayout layout{.layers = 1, .kv_heads = 1, .head_dim = 576, .latent_rope_dim = 64};
  const std::vector<uint32_t> blocks(40, 1), token = {3};
  std::vector<SequenceStep> steps;
  for (const int32_t position : {0, 600, 5}) {
    steps.push_back(
        {.tokens = token, .position = position, .blocks = blocks, .wants_logits = true});
  }
  CudaBatch batch({.sequences = steps, .kv = {.arena = nullptr, .blocks = 40, .layout = layout}},
                  /*hidden=*/64, /*group=*/128);
  EXPECT_TRUE(batch.paddable());
  EXPECT_EQ(batch.all.plan.narrow.size(), 24u);
  batch.PadTo(batch.PaddedShape(512));
  EXPECT_EQ(batch.all.plan.narrow.size(), 32u);
  EXPECT_LT(batch.all.plan.narrow.back().sequence, 0);
}

// Their partial sums would take 2.5 GB.
TEST(CudaBatch, ManyRowsOfALongSequenceHaveSeveralLaunches) {
  const KvLayout layout{.layers = 1, .kv_heads = 8, .head_dim = 128};
  constexpr int32_t kLength = 131072;
  const std::vector<uint32_t> blocks(kLength / 16, 1), token = {3};
  std::vector<SequenceStep> steps;
  for (int32_t i = 0; i < 600; ++i) {
    steps.push_back({.tokens = token,
                     .position = kLength - 2 * (600 - i),
                     .blocks = blocks,
                     .wants_logits = true});
  }
  const CudaBatch batch(
      {.sequences = steps, .kv = {.arena = nullptr, .blocks = 2, .layout = layout}},
      /*hidden=*/64, /*group=*/4);
  const cuda::AttentionPlan& plan = batch.all.plan;
  EXPECT_FALSE(batch.paddable());
  EXPECT_LE(cuda::NarrowScratchBytes(plan.shares, 8, 128), size_t{256} << 20);
  EXPECT_EQ(plan.launch_ends.size(), 9u);
  EXPECT_EQ(plan.narrow.size(), 600u);
}

// Parts of one sequence share tiles, where they are behind each other.
TEST(CudaBatch, JoinsPartsOfASequence) {
  const KvLayout layout{.layers = 1, .kv_heads = 2, .head_dim = 64};
  const std::vector<uint32_t> blocks(30, 1), others(30, 2), tokens = {3, 4, 5};
  const std::span<const uint32_t> all(tokens);
  const auto part = [&](const std::vector<uint32_t>& table, int32_t position, size_t count) {
    return SequenceStep{.tokens = all.first(count), .position = position, .blocks = table};
  };
  const std::vector<SequenceStep> steps = {part(others, 20, 3), part(blocks, 100, 2),
                                           part(blocks, 102, 1), part(blocks, 300, 3),
                                           part(blocks, 290, 1)};
  const CudaBatch batch(
      {.sequences = steps, .kv = {.arena = nullptr, .blocks = 3, .layout = layout}},
      /*hidden=*/64, /*group=*/2, {.joins = true});
  EXPECT_EQ(batch.all.positions,
            (std::vector<int32_t>{20, 21, 22, 100, 101, 102, 300, 301, 302, 290}));
  ASSERT_EQ(batch.all.sequences.size(), 3u);
  const cuda::AttentionSequence& joined = batch.all.sequences[1];
  EXPECT_EQ(joined.first_row, 3);
  EXPECT_EQ(joined.rows, 6);
  EXPECT_EQ(joined.position + joined.rows, 303);
  EXPECT_EQ(batch.all.tables[static_cast<size_t>(batch.all.table_stride)], 1u);
  EXPECT_EQ(batch.all.rows, 10);
}

// The same steps on two runners, one of which makes graphs.
class Twins {
 public:
  explicit Twins(const ModelConfig& config, KvDtype dtype = KvDtype::kBf16, size_t graphs_max = 32)
      : weights_(RandomWeights(config, 5, 0.2f)),
        device_(*cuda::CudaDevice::Open(0)),
        plain_(*CudaRunner::Create(weights_, *device_, {.graphs_max = 0})),
        graphed_(*CudaRunner::Create(weights_, *device_, {.graphs_max = graphs_max})),
        want_(*plain_, kSequences, dtype),
        got_(*graphed_, kSequences, dtype) {}

  void Step(const std::vector<Rig::Feed>& feeds) {
    EXPECT_EQ(got_.Step(feeds), want_.Step(feeds));
    for (size_t i = 0; i < want_.drawn.size(); ++i) {
      EXPECT_EQ(got_.drawn[i].id, want_.drawn[i].id);
      EXPECT_EQ(got_.drawn[i].total_mass, want_.drawn[i].total_mass);
    }
  }
  // Prompts of some lengths, then tokens: sequences come and go.
  void Serve() {
    std::vector<int32_t> held(kSequences);
    for (int i = 0; i < kSequences; ++i) {
      held[i] = 3 + 13 * i;
      Step({{i, Prompt(held[i], i), 0, false}});
    }
    for (int turn = 0; turn < 14; ++turn) {
      std::vector<Rig::Feed> feeds;
      const int size = turn < 4 ? 3 : turn < 8 ? 2 : 1 + turn % kSequences;
      for (int s = 0; s < size; ++s) {
        const auto random = static_cast<uint64_t>(turn + 1) << 60;
        const auto token = static_cast<uint32_t>(5 * turn + s);
        feeds.push_back({s, {token}, held[s]++, s == 1 || turn % 5 == 3});
        if (s != 1) feeds.back().draws = {{.temperature = 1.5f, .random = random}};
      }
      Step(feeds);
    }
    EXPECT_EQ(
        std::memcmp(got_.memory.as<std::byte>(), want_.memory.as<std::byte>(), got_.memory.bytes()),
        0);
    EXPECT_EQ(plain_->graphs().launches(), 0);
  }
  const CudaGraphs& graphs() const { return graphed_->graphs(); }

  static constexpr int kSequences = 5;

 private:
  Weights weights_;
  std::unique_ptr<cuda::CudaDevice> device_;
  std::unique_ptr<CudaRunner> plain_, graphed_;

 public:
  Rig want_, got_;
};

TEST(CudaGraphs, ChangeNoBit) {
  Twins twins(TinyConfig());
  twins.Serve();
  EXPECT_GE(twins.graphs().launches(), 5);
  EXPECT_LE(twins.graphs().made(), 5);
}

TEST(CudaGraphs, ChangeNoBitOfLatents) {
  ModelConfig config = TinyConfig();
  config.heads = 20;
  config.kv_heads = 1;
  config.latent = {.rank = 512, .plain_dims = 24, .rope_dims = 64, .value_dims = 40};
  config.head_dim = 576;
  config.rope.rotary_dims = 64;
  config.attention_scale = 0.1f;
  Twins twins(config);
  twins.Serve();
  EXPECT_GE(twins.graphs().launches(), 5);
}

TEST(CudaGraphs, ChangeNoBitOfOtherModelsAndPages) {
  ModelConfig config = TinyConfig();
  config.qkv_bias = config.tied_embeddings = true;
  config.qk_norm = QkNorm::kHead;
  config.sliding_window = {10, 0};
  Twins twins(config, KvDtype::kI8);
  twins.Serve();
  EXPECT_GE(twins.graphs().launches(), 5);
}

TEST(CudaGraphs, AreFewAndTheOldestGo) {
  Twins twins(TinyConfig(), KvDtype::kBf16, 1);
  twins.Serve();
  EXPECT_EQ(twins.graphs().size(), 1u);
  EXPECT_GE(twins.graphs().made(), 2);
}

// In one graph, whoever of the batch wants what.
TEST(CudaGraphs, GiveToEachWhatItWants) {
  Twins twins(TinyConfig());
  for (int s = 0; s < 3; ++s) twins.Step({{s, Prompt(5, s), 0, false}});
  for (int32_t i = 0; i < 6; ++i) {
    std::vector<Rig::Feed> feeds;
    for (int s = 0; s < 3; ++s) {
      const bool draws = i % 2 == 0 || s == 0;
      feeds.push_back({s, {4}, 5 + i, !draws || (i + s) % 3 == 0});
      if (draws) feeds.back().draws = {{.random = uint64_t{0x123456789abcdef} << i}};
    }
    twins.Step(feeds);
  }
  EXPECT_EQ(twins.graphs().made(), 1);
  EXPECT_EQ(twins.graphs().launches(), 5);
}

// Steps of other kinds in between, which may make memory larger that a graph names.
TEST(CudaGraphs, FollowTheMemoryThatTheyName) {
  Twins twins(TinyConfig());
  twins.Step({{0, Prompt(4, 1), 0}});
  for (int32_t i = 0; i < 4; ++i) twins.Step({{0, {9}, 4 + i}});
  const int64_t made = twins.graphs().made();
  EXPECT_EQ(made, 1);
  twins.Step({{1, Prompt(190, 1), 0}, {2, Prompt(60, 2), 0}, {3, Prompt(20, 3), 0}});
  for (int32_t i = 0; i < 4; ++i) twins.Step({{0, {9}, 8 + i}});
  EXPECT_EQ(twins.graphs().made(), made + 1);
  Rig elsewhere(twins.got_.runner, Twins::kSequences);
  twins.got_.Step({{0, {5}, 12}});
  elsewhere.Step({{0, Prompt(12, 4), 0}});
  elsewhere.Step({{0, {5}, 12}});
  EXPECT_NE(elsewhere.Step({{0, {5}, 12}}), twins.got_.Step({{0, {5}, 12}}));
}

// Sequences cut into splits where others have none.
TEST(CudaGraphs, PadSplits) {
  ModelConfig config = TinyConfig();
  config.layers = 1;
  config.max_position = 1200;
  Weights weights = RandomWeights(config, 5, 0.2f);
  const auto device = *cuda::CudaDevice::Open(0);
  const auto plain =
      *CudaRunner::Create(weights, *device, {.max_step_tokens = 1100, .graphs_max = 0});
  const auto graphed = *CudaRunner::Create(weights, *device, {.max_step_tokens = 1100});
  Rig want(*plain, 3), got(*graphed, 3);
  for (Rig* rig : {&want, &got}) {
    rig->Step({{0, Prompt(1021, 1), 0, false}});
    rig->Step({{1, Prompt(2, 1), 0, false}});
    rig->Step({{2, Prompt(514, 1), 0, false}});
  }
  for (int32_t i = 0; i < 6; ++i) {  // the first crosses into a third split
    const std::vector<Rig::Feed> feeds = {{0, {3}, 1021 + i}, {1, {5}, 2 + i}, {2, {7}, 514 + i}};
    EXPECT_EQ(got.Step(feeds), want.Step(feeds)) << i;
  }
  EXPECT_GE(graphed->graphs().launches(), 2);
}

TEST(CudaGraphs, TellOfLayersAtTheEnd) {
  const Weights weights = RandomWeights(TinyConfig(), 5, 0.2f);
  const auto device = *cuda::CudaDevice::Open(0);
  const auto runner = *CudaRunner::Create(weights, *device, {});
  Rig rig(*runner, 1);
  std::vector<int32_t> layers;
  std::vector<std::byte> told;
  rig.on_layers_done = [&](int32_t first, int32_t last) {
    layers.insert(layers.end(), {first, last});
    const std::byte* block = rig.kv.Block(rig.tables[0][0]);
    told.assign(block, block + rig.kv.layout.BlockStride());
  };
  for (int32_t i = 0; i < 3; ++i) {
    layers.clear();
    rig.Step({{0, {4}, i}});
    EXPECT_EQ(layers, (std::vector<int32_t>{0, 2}));
    EXPECT_EQ(std::memcmp(told.data(), rig.kv.Block(rig.tables[0][0]), told.size()), 0);
  }
}

// The step whose capture is refused is computed like any other.
TEST(CudaGraphs, ARefusedGraphChangesNoBit) {
  const Weights weights = RandomWeights(TinyConfig(), 5, 0.2f);
  const auto device = *cuda::CudaDevice::Open(0);
  const auto plain = *CudaRunner::Create(weights, *device, {.graphs_max = 0});
  const auto refused = *CudaRunner::Create(weights, *device, {});
  Rig want(*plain, 1), got(*refused, 1);
  cuda::emulator::RefuseNextGraph();
  for (int32_t i = 0; i < 3; ++i) EXPECT_EQ(got.Step({{0, {4}, i}}), want.Step({{0, {4}, i}})) << i;
  EXPECT_EQ(refused->graphs().launches(), 0);
}

// The caller's own work is called for once, before the step's results come.
TEST(CudaGraphs, LeaveTheCallerFree) {
  const Weights weights = RandomWeights(TinyConfig(), 5, 0.2f);
  const auto device = *cuda::CudaDevice::Open(0);
  const auto runner = *CudaRunner::Create(weights, *device, {});
  ASSERT_TRUE(runner->runs_beside_caller());
  Rig rig(*runner, 1);
  std::string order;
  rig.meanwhile = [&] { order += 'm'; };
  rig.on_layers_done = [&](int32_t, int32_t) { order += 'l'; };
  rig.Step({{0, Prompt(4, 1), 0, false}});
  EXPECT_EQ(order, "mll");
  for (int32_t i = 0; i < 3; ++i) {
    order.clear();
    rig.Step({{0, {4}, 4 + i}});
    EXPECT_EQ(order, "ml");
  }
  EXPECT_GT(runner->graphs().launches(), 0);
}

}  // namespace
}  // namespace penstock
