#include "lab/micro/kernels_model.h"

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <numeric>
#include <utility>

#include "kernels/cpu/thread_pool.h"

namespace penstock {
namespace {

constexpr int32_t kChunk = 512;

double SecondsOfWork(const auto& run) {
  const auto start = std::chrono::steady_clock::now();
  run();
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

}  // namespace

ModelConfig TinyLlamaShape() {
  return {.architecture = "LlamaForCausalLM",
          .layers = 22,
          .hidden = 2048,
          .intermediate = 5632,
          .heads = 32,
          .kv_heads = 4,
          .head_dim = 64,
          .vocab = 32000,
          .max_position = kBenchContext + 64};
}

ModelConfig ExpertsShape() {
  ModelConfig config = TinyLlamaShape();
  config.architecture = "Qwen3MoeForCausalLM";
  config.layers = 4;
  config.head_dim = 128;
  config.qk_norm = QkNorm::kHead;
  config.experts = {.count = 64, .per_token = 8, .intermediate = 768};
  return config;
}

MachineLimits::Memory MatrixMemory(const Weights& weights) {
  MachineLimits::Memory memory;
  for (const LayerWeights& layer : weights.layers) {
    for (const WeightMatrix* matrix : layer.Matrices()) {
      for (const auto part : matrix->memory()) memory.push_back(part);
    }
  }
  for (const auto part : weights.lm_head.memory()) memory.push_back(part);
  return memory;
}

BenchModel::BenchModel(const Exec& exec, const MatrixForms& forms, const ModelConfig& config)
    : BenchModel(exec, RandomWeights(config, 1, 0.02f, forms)) {}

BenchModel::BenchModel(const Exec& exec, Weights weights)
    : exec_(exec),
      weights_(std::move(weights)),
      runner_(weights_, exec, kChunk),
      attention_(weights_.config.head_dim, ThreadCount(exec)),
      table_blocks_(runner_.kv_layout().BlocksFor(runner_.max_position())),
      pages_(static_cast<size_t>(table_blocks_ * kBenchBatch) * runner_.kv_layout().BlockStride()),
      kv_{pages_.as<std::byte>(), table_blocks_ * kBenchBatch, runner_.kv_layout()},
      tokens_(kBenchContext),
      blocks_(static_cast<size_t>(table_blocks_ * kBenchBatch)),
      logits_(static_cast<size_t>(kBenchBatch * runner_.vocab())) {
  std::memset(pages_.as<std::byte>(), 0, pages_.bytes());  // so that all of the pool is resident
  std::iota(blocks_.begin(), blocks_.end(), 0u);
  for (size_t i = 0; i < tokens_.size(); ++i) tokens_[i] = static_cast<uint32_t>(i * 7 % 32000);
}

double BenchModel::DecodeSeconds(int sequences, int32_t position) {
  std::vector<SequenceStep> steps;
  for (int s = 0; s < sequences; ++s) steps.push_back(Tokens(s, position, 1, true));
  return SecondsOfWork([&] { Step(steps); });
}

double BenchModel::PrefillSeconds(int32_t count) {
  return SecondsOfWork([&] {
    for (int32_t first = 0; first < count; first += kChunk) {
      Step({Tokens(0, first, kChunk, first + kChunk == count)});
    }
  });
}

double BenchModel::PrefillOperations(int32_t count) const {
  const ModelConfig& c = weights_.config;
  const double width = double{1} * c.heads * c.head_dim;
  const double qkv = 2.0 * c.hidden * (width + 2.0 * c.kv_heads * c.head_dim);
  const double rest = 2.0 * c.hidden * (width + 3.0 * c.intermediate);
  const double causal = 4.0 * width * (count * (count + 1.0) / 2);
  return (qkv * count + rest * count + causal) * (c.layers - 1) + qkv * count + rest +
         4.0 * width * count + 2.0 * c.hidden * c.vocab;
}

double BenchModel::AttentionSeconds(int32_t position) {
  const ModelConfig& c = weights_.config;
  const int64_t width = int64_t{c.heads} * c.head_dim;
  std::vector<float> queries(static_cast<size_t>(width), 0.5f), output(queries.size());
  const AttentionSequence sequence{
      .first_row = 0, .rows = 1, .position = position, .blocks = blocks_};
  return SecondsOfWork([&] {
    for (int32_t layer = 0; layer < c.layers; ++layer) {
      Attention(exec_, {.queries = {queries.data(), {1, width}},
                        .output = {output.data(), {1, width}},
                        .heads = c.heads,
                        .kv = kv_,
                        .layer = layer,
                        .scale = 0.125f,
                        .sequences = {&sequence, 1},
                        .scratch = &attention_});
    }
  });
}

SequenceStep BenchModel::Tokens(int sequence, int32_t position, int32_t count,
                                bool wants_logits) const {
  return {.tokens = std::span(tokens_).subspan(position % kChunk, count),
          .position = position,
          .blocks = std::span(blocks_).subspan(sequence * table_blocks_, table_blocks_),
          .wants_logits = wants_logits};
}

void BenchModel::Step(const std::vector<SequenceStep>& sequences) {
  const int64_t rows = std::count_if(sequences.begin(), sequences.end(),
                                     [](const SequenceStep& s) { return s.wants_logits; });
  const absl::Status status = runner_.Step(
      {.sequences = sequences, .kv = kv_, .logits = {logits_.data(), {rows, runner_.vocab()}}});
  if (!status.ok()) std::abort();
}

}  // namespace penstock
