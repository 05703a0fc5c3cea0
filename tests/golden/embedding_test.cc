#include "router/request/embedding.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <numeric>
#include <string>
#include <vector>

#include "base/mapped_file.h"
#include "kernels/buffer.h"
#include "kernels/cpu/isa.h"
#include "model/checkpoint/embedding_config.h"
#include "model/checkpoint/safetensors.h"
#include "model/forward/transformer_runner.h"
#include "model/load/load_model.h"
#include "tests/support/environment.h"

// Hidden states and embeddings against what transformers computed (make_embedding.py).
namespace penstock {
namespace {

template <class T>
std::vector<T> ReadTensor(const MappedFile& file, const SafetensorsHeader& header,
                          std::string_view name) {
  std::vector<T> values;
  for (const SafetensorsTensor& tensor : header.tensors) {
    if (tensor.name != name) continue;
    values.resize((tensor.end - tensor.begin) / sizeof(T));
    std::memcpy(values.data(), file.bytes().data() + tensor.begin, values.size() * sizeof(T));
  }
  return values;
}

double RelativeError(const std::vector<float>& found, const std::vector<float>& expected) {
  EXPECT_EQ(found.size(), expected.size());
  double error = 0, scale = 0;
  for (size_t i = 0; i < found.size(); ++i) {
    error += std::pow(double{found[i]} - expected[i], 2);
    scale += std::pow(double{expected[i]}, 2);
  }
  return std::sqrt(error / scale);
}

class GoldenEmbeddingTest : public ::testing::Test {
 protected:
  GoldenEmbeddingTest() {
    const auto file = MappedFile::Open(directory_ + "/expected.safetensors");
    const auto header = ParseSafetensors(file->bytes(), "expected.safetensors");
    tokens_ = ReadTensor<uint32_t>(*file, *header, "tokens");
    hidden_ = ReadTensor<float>(*file, *header, "hidden");
    embeddings_ = ReadTensor<float>(*file, *header, "embeddings");
  }

  // The hidden states of the tokens that end a chunk of `size`.
  std::vector<float> Run(size_t size) {
    TransformerRunner runner(model_->weights, {}, 64);
    const auto width = static_cast<size_t>(runner.hidden_size());
    const KvLayout layout = runner.kv_layout();
    const Buffer arena(static_cast<size_t>(layout.BlocksFor(64)) * layout.BlockStride());
    std::vector<uint32_t> table(static_cast<size_t>(layout.BlocksFor(64)));
    std::iota(table.begin(), table.end(), 0);
    std::vector<float> hidden, logits(static_cast<size_t>(runner.vocab()));
    for (size_t done = 0; done < tokens_.size(); done += size) {
      hidden.resize(hidden.size() + width);
      const SequenceStep step{.tokens = std::span(tokens_).subspan(done, size),
                              .position = static_cast<int32_t>(done),
                              .blocks = table,
                              .wants_logits = true,
                              .hidden = std::span(hidden).last(width)};
      const absl::Status status = runner.Step(
          {.sequences = {&step, 1},
           .kv = {.arena = arena.as<std::byte>(), .blocks = layout.BlocksFor(64), .layout = layout},
           .logits = {logits.data(), {1, runner.vocab()}}});
      EXPECT_TRUE(status.ok()) << status;
    }
    return hidden;
  }

  // The mean of the hidden states, in chunks of `size`.
  std::vector<float> Mean(size_t size) {
    TransformerRunner runner(model_->weights, {}, 64);
    const KvLayout layout = runner.kv_layout();
    const Buffer arena(static_cast<size_t>(layout.BlocksFor(64)) * layout.BlockStride());
    std::vector<uint32_t> table(static_cast<size_t>(layout.BlocksFor(64)));
    std::iota(table.begin(), table.end(), 0);
    std::vector<double> sum(static_cast<size_t>(runner.hidden_size()));
    std::vector<float> logits(static_cast<size_t>(runner.vocab()));
    for (size_t done = 0; done < tokens_.size(); done += size) {
      const size_t count = std::min(size, tokens_.size() - done);
      const bool last = done + count == tokens_.size();
      const SequenceStep step{.tokens = std::span(tokens_).subspan(done, count),
                              .position = static_cast<int32_t>(done),
                              .blocks = table,
                              .wants_logits = last,
                              .hidden_sum = sum};
      const absl::Status status = runner.Step(
          {.sequences = {&step, 1},
           .kv = {.arena = arena.as<std::byte>(), .blocks = layout.BlocksFor(64), .layout = layout},
           .logits = {logits.data(), {last ? 1 : 0, runner.vocab()}}});
      EXPECT_TRUE(status.ok()) << status;
    }
    last_logits_ = logits;
    std::vector<float> mean;
    for (const double value : sum) {
      mean.push_back(static_cast<float>(value / static_cast<double>(tokens_.size())));
    }
    return mean;
  }

  std::vector<float> last_logits_;
  const std::string directory_ = SourceFolder() + "/tests/golden/embedding";
  const absl::StatusOr<LoadedModel> model_ = LoadModel(directory_);
  std::vector<uint32_t> tokens_;
  std::vector<float> hidden_, embeddings_;
};

TEST_F(GoldenEmbeddingTest, HiddenStatesAreTransformers) {
  ASSERT_TRUE(model_.ok()) << model_.status();
  for (const Isa isa : SupportedIsas()) {
    const ScopedIsa scoped(isa);
    const double limit = isa == Isa::kAvx512Bf16 ? 0.015 : 2e-4;  // as for logits
    EXPECT_LE(RelativeError(Run(1), hidden_), limit) << IsaName(isa);
  }
}

TEST_F(GoldenEmbeddingTest, ChunksChangeNoBit) {
  ASSERT_TRUE(model_.ok()) << model_.status();
  const std::vector<float> whole = Run(tokens_.size()), one_by_one = Run(1);
  EXPECT_EQ(whole, std::vector<float>(one_by_one.end() - std::ssize(whole), one_by_one.end()));
}

// transformers' hidden states, and the mean that sentence-transformers makes of them.
TEST_F(GoldenEmbeddingTest, TheMeanIsThatOfAllTokens) {
  ASSERT_TRUE(model_.ok()) << model_.status();
  for (const Isa isa : SupportedIsas()) {
    const ScopedIsa scoped(isa);
    const std::vector<float> found = Mean(tokens_.size());
    const size_t width = found.size();
    std::vector<float> expected(width);
    for (size_t i = 0; i < hidden_.size(); ++i) expected[i % width] += hidden_[i];
    for (float& value : expected) value /= static_cast<float>(tokens_.size());
    EXPECT_LE(RelativeError(found, expected), isa == Isa::kAvx512Bf16 ? 0.015 : 2e-4)
        << IsaName(isa);
  }
}

TEST_F(GoldenEmbeddingTest, ChunksChangeNoBitOfTheMean) {
  ASSERT_TRUE(model_.ok()) << model_.status();
  const std::vector<float> whole = Mean(tokens_.size());
  const std::vector<float> logits = last_logits_;
  for (const size_t size : {1, 3, 7, 16}) {
    EXPECT_EQ(Mean(size), whole) << size;
    EXPECT_EQ(last_logits_, logits) << size;
  }
}

TEST_F(GoldenEmbeddingTest, EmbeddingsAreMadeAsTheCheckpointSays) {
  ASSERT_TRUE(model_.ok()) << model_.status();
  const ScopedIsa scoped(Isa::kPortable);
  const auto config = LoadEmbeddingConfig(directory_, model_->weights.config.hidden);
  ASSERT_TRUE(config.ok()) << config.status();
  EXPECT_TRUE(config->normalise);
  const auto width = static_cast<uint32_t>(config->dimensions);
  const std::vector<float> found =
      MakeEmbedding(Run(tokens_.size()), {.hidden = width, .dimensions = width, .normalise = true});
  EXPECT_LE(RelativeError(found, {embeddings_.end() - width, embeddings_.end()}), 2e-4);
}

}  // namespace
}  // namespace penstock
