#pragma once

#include <memory>
#include <span>
#include <string>
#include <vector>

#include "kernels/thread_pool.h"
#include "kvstore/block_pool.h"
#include "kvstore/codec_calibration.h"
#include "model/load_model.h"
#include "model/sampler.h"
#include "model/transformer_runner.h"

namespace penstock {

// The answer as one process gives it without any of what Penstock adds: the whole prompt in one
// step, then one token a step, alone in the batch.
class LocalGenerator {
 public:
  explicit LocalGenerator(const std::string& model_folder, KvDtype kv_format = KvDtype::kBf16);

  // Stops at `tokens_max` tokens or behind one of params.stop_token_ids. `wire`: behind the first
  // token, the prompt's KV is what this codec makes of it.
  std::vector<uint32_t> Generate(std::span<const uint32_t> prompt, const SamplingParams& params,
                                 int tokens_max, uint32_t choice = 0, const KvCodecSpec& wire = {});

  const ModelConfig& config() const { return model_.weights.config; }

 private:
  void Step(std::span<const uint32_t> tokens, int32_t position, std::span<const uint32_t> table);
  void Transcode(const KvCodecSpec& codec, std::span<const uint32_t> blocks);

  LoadedModel model_;
  ThreadPool threads_{1};
  std::unique_ptr<TransformerRunner> runner_;
  std::unique_ptr<BlockPool> pool_;
  std::vector<float> logits_;
  std::unique_ptr<KvCalibration> calibration_;  // where the model has one
};

}  // namespace penstock
