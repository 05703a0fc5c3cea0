#pragma once

#include <cstdint>
#include <vector>

#include "kernels/attention.h"
#include "lab/micro/kernels_limits.h"
#include "model/forward/transformer_runner.h"

namespace penstock {

inline constexpr int32_t kBenchContext = 2048;
inline constexpr int32_t kBenchBatch = 8;

// Shapes: TinyLlama-1.1B, and four layers of 64 experts of Qwen3-30B-A3B's size.
ModelConfig TinyLlamaShape();
ModelConfig ExpertsShape();

// The matrices of layers and output, whose bytes decode steps read.
MachineLimits::Memory MatrixMemory(const Weights& weights);

// A model with random weights in `forms`, or with given ones, its runner, and pages for kBenchBatch
// sequences of up to kBenchContext + 64 tokens. One thread calls it.
class BenchModel {
 public:
  // `exec.threads` outlives the object.
  BenchModel(const Exec& exec, const MatrixForms& forms,
             const ModelConfig& config = TinyLlamaShape());
  BenchModel(const Exec& exec, Weights weights);

  const Weights& weights() const { return weights_; }
  size_t pool_bytes() const { return pages_.bytes(); }

  // The cost of one token at `position` of each of `sequences`.
  double DecodeSeconds(int sequences, int32_t position);
  double PrefillSeconds(int32_t count);
  // Useful operations of PrefillSeconds for a dense model: the last layer gives only keys and
  // values for most tokens.
  double PrefillOperations(int32_t count) const;
  // Attention of one decode step at `position`, over all layers, and nothing else.
  double AttentionSeconds(int32_t position);

 private:
  SequenceStep Tokens(int sequence, int32_t position, int32_t count, bool wants_logits) const;
  void Step(const std::vector<SequenceStep>& sequences);

  const Exec exec_;
  const Weights weights_;
  TransformerRunner runner_;
  const AttentionScratch attention_;
  const int64_t table_blocks_;
  const Buffer pages_;
  const PagedKv kv_;
  std::vector<uint32_t> tokens_;
  std::vector<uint32_t> blocks_;
  std::vector<float> logits_;
};

}  // namespace penstock
