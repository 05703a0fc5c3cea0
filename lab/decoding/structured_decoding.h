#pragma once

#include <cstdint>
#include <vector>

#include "base/status.h"
#include "kernels/buffer.h"
#include "model/forward/model_runner.h"
#include "model/sampler/sampler.h"

namespace penstock {

// Decodes a batch of sequences step by step, as an engine does, without its queues. One thread.
class StructuredDecoding {
 public:
  // Room for `steps` steps. Sequence s draws with params[s]. `runner` outlives the object.
  StructuredDecoding(ModelRunner& runner, const std::vector<SamplingParams>& params, int steps);

  // The first call computes the sequences' prompts.
  absl::Status Step();

  const std::vector<uint32_t>& answer(size_t sequence) const { return sequences_[sequence].answer; }

 private:
  struct Sequence {
    Sampler sampler;
    std::vector<uint32_t> table = {};
    std::vector<uint32_t> next = {};
    std::vector<uint32_t> answer = {};
    int32_t held = 0;  // tokens
  };

  ModelRunner& runner_;
  const KvLayout layout_;
  const int64_t blocks_;  // of a sequence
  const Buffer pages_;
  std::vector<Sequence> sequences_;
  std::vector<float> logits_;
};

}  // namespace penstock
