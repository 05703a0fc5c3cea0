#include "model/forward/runner_check.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <limits>

#include "kernels/buffer.h"
#include "kernels/experts.h"
#include "kernels/page_copier.h"
#include "model/forward/transformer_runner.h"

namespace penstock {
namespace {

using ::testing::HasSubstr;

// The CPU's runner with something wrong.
class FaultyRunner final : public ModelRunner {
 public:
  using Fault = std::function<void(const StepArgs&)>;
  FaultyRunner(ModelRunner& good, Fault fault) : good_(good), fault_(std::move(fault)) {}
  int32_t vocab() const override { return good_.vocab(); }
  KvLayout kv_layout() const override { return good_.kv_layout(); }
  int32_t max_position() const override { return good_.max_position(); }
  absl::Status Step(const StepArgs& args) override {
    RETURN_IF_ERROR(good_.Step(args));
    fault_(args);
    return absl::OkStatus();
  }

 private:
  ModelRunner& good_;
  const Fault fault_;
};

// Copies as a GPU's pages are, less some.
class FaultyCopier final : public PageCopier {
 public:
  FaultyCopier(PagedKv pages, size_t less) : pages_(pages), less_(less) {}
  void Read(std::span<const uint32_t> pages, size_t offset, size_t bytes,
            std::byte* host) override {
    ReadPages(pages_, pages, offset, bytes, host);
  }
  void Write(std::span<const uint32_t> pages, size_t offset, size_t bytes,
             const std::byte* host) override {
    WritePages(pages_, pages.first(pages.size() - less_), offset, bytes, host);
  }

 private:
  const PagedKv pages_;
  const size_t less_;
};

class RunnerCheckTest : public ::testing::Test {
 protected:
  RunnerCheckTest() {
    layout_.dtype = KvDtype::kI8;
    memory_ = Buffer(2 * pages_bytes());
    ForgetPages();
  }
  void ForgetPages() { std::memset(memory_.as<std::byte>(), 0xff, memory_.bytes()); }
  size_t pages_bytes() const { return RunnerCheckBlocks(layout_) * layout_.BlockStride(); }
  PagedKv Pages(int which) const {
    return {memory_.as<std::byte>() + which * pages_bytes(), RunnerCheckBlocks(layout_), layout_};
  }
  absl::Status Check(ModelRunner& checked) {
    return CheckRunner({checked, Pages(0)}, {runner_, Pages(1)});
  }
  std::string Fault(FaultyRunner::Fault fault) {
    FaultyRunner faulty(runner_, std::move(fault));
    const absl::Status status = Check(faulty);
    EXPECT_TRUE(status.ok() || absl::IsFailedPrecondition(status)) << status;
    return status.ok() ? "fine" : Message(status);
  }

  const ModelConfig config_ = SmallModelLike({.layers = 30,
                                              .hidden = 4096,
                                              .intermediate = 11000,
                                              .heads = 32,
                                              .kv_heads = 8,
                                              .head_dim = 64,
                                              .vocab = 100'000,
                                              .max_position = 8192,
                                              .sliding_window = {4096}},
                                             1);
  const Weights weights_ = RandomWeights(config_, 1, 0.1f);
  TransformerRunner runner_{weights_, {}, static_cast<int32_t>(RunnerCheckTokens())};
  KvLayout layout_ = runner_.kv_layout();
  Buffer memory_;
};

TEST_F(RunnerCheckTest, TheModelHasTheHeadsOfTheLargeOne) {
  EXPECT_EQ(config_.heads, 8);
  EXPECT_EQ(config_.head_dim, 64);
  EXPECT_EQ(config_.sliding_window.size(), 2u);
}

TEST_F(RunnerCheckTest, TheModelHasThePartsOfTheLargeOne) {
  using enum LayerRope;
  const ModelConfig large = {.layers = 4,
                             .heads = 8,
                             .kv_heads = 4,
                             .head_dim = 64,
                             .layer_norm = true,
                             .layer_rope = {kLocal, kLocal, kLocal, kMain},
                             .attention_sinks = true,
                             .attention_cap = 50,
                             .logit_cap = 30};
  const Weights small = SmallWeightsLike(large, 1);
  EXPECT_EQ(small.config.layer_rope, (std::vector<LayerRope>{kLocal, kMain}));
  EXPECT_TRUE(small.config.layer_norm);
  EXPECT_LT(small.config.attention_cap, 5);  // scores reach it
  EXPECT_LT(small.config.logit_cap, 5);
  EXPECT_GT(small.layers[1].sinks.at(3), 4);
  EXPECT_NE(small.final_norm.at(0), small.final_norm.at(1));
  ModelConfig plain = large;
  plain.layer_rope.assign(4, kNone);
  plain.attention_cap = plain.logit_cap = 0;
  const ModelConfig same = SmallModelLike(plain, 1);
  EXPECT_EQ(same.layer_rope, (std::vector<LayerRope>{kNone, kNone}));
  EXPECT_EQ(same.attention_cap + same.logit_cap, 0);
}

TEST(SmallModel, HasLatentsOfTheSameSize) {
  const ModelConfig large{
      .layers = 61,
      .heads = 128,
      .kv_heads = 1,
      .head_dim = 576,
      .latent = {
          .rank = 512, .query_rank = 1536, .plain_dims = 128, .rope_dims = 64, .value_dims = 128}};
  const ModelConfig small = SmallModelLike(large, 1);
  EXPECT_EQ(small.kv_heads, 1);
  EXPECT_EQ(small.heads, 32);                     // two tiles of rows
  EXPECT_EQ(SmallModelLike(large, 2).heads, 64);  // the same on each GPU
  EXPECT_EQ(SmallModelLike(large, 8).heads, 128);
  EXPECT_EQ(SmallModelLike(large, 8).kv_heads, 1);
  EXPECT_EQ(small.head_dim, 576);
  EXPECT_EQ(small.latent.rank, 512);
  EXPECT_LT(small.latent.query_rank, 512);
  ModelConfig lite = large;
  lite.heads = 16;
  lite.latent.query_rank = 0;
  EXPECT_EQ(SmallModelLike(lite, 1).heads, 16);
  EXPECT_EQ(SmallModelLike(lite, 1).latent.query_rank, 0);
}

ModelConfig WithExperts() {
  return {.layers = 6,
          .heads = 8,
          .kv_heads = 4,
          .head_dim = 64,
          .tied_embeddings = true,
          .experts = {.count = 90,
                      .per_token = 8,
                      .intermediate = 14336,
                      .shared_intermediate = 4096,
                      .dense = {true, true, false, false, false, false}}};
}

TEST(SmallModel, HasExpertsLikeTheLargeOne) {
  const ModelConfig large = WithExperts();
  const ModelConfig small = SmallModelLike(large, 1);
  EXPECT_TRUE(!small.HasExperts(0) && small.HasExperts(1));
  EXPECT_EQ(small.experts.count, 90);
  EXPECT_LT(small.experts.intermediate, 200);
  EXPECT_LT(small.experts.shared_intermediate, 200);
  ModelConfig sparse = large;
  sparse.experts.dense.clear();
  sparse.experts.shared_intermediate = 0;
  EXPECT_TRUE(SmallModelLike(sparse, 1).HasExperts(0));
  EXPECT_EQ(SmallModelLike(sparse, 1).experts.shared_intermediate, 0);
}

// A token's embedding chooses the experts of one group, by far.
TEST(SmallModel, ChoosesExpertsClearly) {
  ModelConfig large = WithExperts();
  large.experts.dense.clear();
  const Weights small = SmallWeightsLike(large, 1);
  const int64_t hidden = small.config.hidden, count = 90, groups = 11;
  for (int64_t token = 0; token < 22; ++token) {
    std::vector<float> input, scores(count), weights(8);
    for (int64_t i = 0; i < hidden; ++i) {
      input.push_back(ToFloat(small.embedding.as<Bf16>()[token * hidden + i]));
    }
    std::vector<int32_t> chosen(8);
    Route({}, {.input = {input.data(), {1, hidden}},
               .router = {small.layers[0].experts->router.data(), {count, hidden}},
               .scores = {scores.data(), {1, count}},
               .chosen = {chosen.data(), {1, 8}},
               .weights = {weights.data(), {1, 8}}});
    float last = scores[static_cast<size_t>(chosen[7])], next = -1e9f;
    for (size_t e = 0; e < scores.size(); ++e) {
      const bool of_group = static_cast<int64_t>(e) / 8 == token % groups;
      if (!of_group) next = std::max(next, scores[e]);
    }
    for (const int32_t e : chosen) EXPECT_EQ(e / 8, token % groups);
    EXPECT_GT(last, 1.3f * next);
  }
}

TEST_F(RunnerCheckTest, ARightRunnerPasses) { EXPECT_TRUE(Check(runner_).ok()) << Check(runner_); }

TEST_F(RunnerCheckTest, LogitsThatAreOff) {
  EXPECT_EQ(Fault([](const StepArgs& args) { args.logits.data[0] *= 1.01f; }), "fine");
  EXPECT_THAT(Fault([](const StepArgs& args) { args.logits.data[0] += 1e3f; }),
              HasSubstr("off the CPU's"));
  // Only of a token behind a prompt.
  EXPECT_THAT(Fault([](const StepArgs& args) {
                if (args.sequences[0].tokens.size() == 1) args.logits.data[0] += 1e3f;
              }),
              HasSubstr("off the CPU's"));
  EXPECT_THAT(Fault([](const StepArgs& args) {
                args.logits.data[9] = std::numeric_limits<float>::quiet_NaN();
              }),
              HasSubstr("nan of their size"));
}

// In pages of few bits two good runners differ by much, but not from the same pages.
TEST_F(RunnerCheckTest, LogitsFromTheSamePagesInFewBits) {
  const auto grow = [](float factor) {
    return [factor](const StepArgs& args) {
      for (int64_t i = 0; i < args.logits.dim(1); ++i) args.logits.data[i] *= factor;
    };
  };
  EXPECT_THAT(Fault(grow(1.3f)), HasSubstr("0.3 of their size off the CPU's, 0.15 may be"));
  for (const KvDtype dtype : {KvDtype::kI4r, KvDtype::kK3v2}) {
    layout_.dtype = dtype;
    EXPECT_EQ(Fault([](const StepArgs&) {}), "fine");
    EXPECT_THAT(Fault(grow(1.9f)), HasSubstr("0.9 of their size off the CPU's, 0.7 may be"));
    EXPECT_THAT(Fault(grow(1.3f)), HasSubstr("0.3 of their size off the CPU's, 0.15 may be"));
  }
}

// Other kernels compute many rows, and attention over many tokens.
TEST_F(RunnerCheckTest, MistakesOfLargeStepsAndLongHistoriesShow) {
  const auto rows = [](const StepArgs& args) {
    size_t all = 0;
    for (const SequenceStep& sequence : args.sequences) all += sequence.tokens.size();
    return all;
  };
  EXPECT_THAT(Fault([&](const StepArgs& args) {
                if (rows(args) > 65) args.logits.data[0] += 1e3f;
              }),
              HasSubstr("off the CPU's"));
  EXPECT_THAT(Fault([&](const StepArgs& args) {
                if (rows(args) == 1 && args.sequences[0].position > 600) {
                  args.logits.data[0] += 1e3f;
                }
              }),
              HasSubstr("off the CPU's"));
  EXPECT_THAT(Fault([&](const StepArgs& args) {
                if (rows(args) < 600) return;
                for (const int forgotten : {1, 2}) {  // 256 tokens
                  for (const uint32_t block : args.sequences[forgotten].blocks) {
                    std::memset(args.kv.Block(block), 0, args.kv.layout.PayloadBytes());
                  }
                }
              }),
              HasSubstr("off the CPU's"));
  EXPECT_THAT(Fault([&](const StepArgs& args) {
                if (args.sequences[0].position > 640) args.logits.data[0] *= 1.0001f;
              }),
              HasSubstr("cut into steps"));
}

TEST_F(RunnerCheckTest, BitsThatDependOnOthers) {
  EXPECT_THAT(Fault([](const StepArgs& args) {
                if (args.sequences.size() > 1) args.logits.data[0] *= 1.0001f;
              }),
              HasSubstr("beside another sequence"));
}

TEST_F(RunnerCheckTest, BitsThatDependOnChunks) {
  EXPECT_THAT(Fault([](const StepArgs& args) {
                if (args.sequences[0].position == 8) args.logits.data[0] *= 1.0001f;
              }),
              HasSubstr("cut into steps"));
}

TEST_F(RunnerCheckTest, PagesThatDoNotComeBack) {
  for (const size_t less : {0, 1}) {
    ForgetPages();
    FaultyCopier copier(Pages(0), less);
    PagedKv pages = Pages(0);
    pages.copier = &copier;
    const absl::Status status = CheckRunner({runner_, pages}, {runner_, Pages(1)});
    if (less == 0) {
      EXPECT_TRUE(status.ok()) << status;
    } else {
      EXPECT_THAT(Message(status), HasSubstr("to the host and back"));
    }
  }
}

}  // namespace
}  // namespace penstock
