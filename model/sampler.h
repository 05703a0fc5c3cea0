#pragma once

#include <cstdint>
#include <span>
#include <utility>
#include <vector>

#include "base/status.h"
#include "kernels/view.h"

namespace penstock {

struct SamplingParams {
  float temperature = 1.0f;  // 0 = greedy; ties go to the lowest id
  float top_p = 1.0f;
  int32_t top_k = 0;  // 0 = off
  float min_p = 0.0f;
  float frequency_penalty = 0.0f;
  float presence_penalty = 0.0f;
  float repetition_penalty = 1.0f;
  uint64_t seed = 0;
  std::vector<std::pair<uint32_t, float>> logit_bias;
  std::vector<uint32_t> stop_token_ids;  // not sampled before min_tokens
  int32_t min_tokens = 0;
  int32_t top_logprobs = 0;  // 0..20
};

struct TokenLogprob {
  uint32_t id = 0;
  float logprob = 0.0f;
};

struct SampledToken {
  uint32_t id = 0;
  float logprob = 0.0f;           // natural log, of the model's own distribution (before all knobs)
  std::vector<TokenLogprob> top;  // params.top_logprobs entries, best first
};

// The sampling state of one choice of one request: counts for the penalties and how far it is. The
// random draw is Philox4x32-10 keyed by (seed) with counter (output position, choice): whichever
// worker samples it, in whichever batch, the token is the same. One thread at a time.
class Sampler {
 public:
  // `prompt` counts for the repetition penalty only.
  Sampler(SamplingParams params, uint32_t choice, std::span<const uint32_t> prompt);

  // Takes note of a token that was sampled elsewhere (by the prefill worker, or before a failover).
  void Observe(uint32_t token);
  // Samples the next token from `logits` [vocab], which it may overwrite, and observes it.
  SampledToken Sample(std::span<float> logits);

  int32_t output_tokens() const { return output_tokens_; }

 private:
  void ApplyPenalties(std::span<float> logits) const;

  SamplingParams params_;
  uint32_t choice_;
  int32_t output_tokens_ = 0;
  std::vector<uint32_t> prompt_ids_;                         // sorted, unique
  std::vector<std::pair<uint32_t, int32_t>> output_counts_;  // sorted by id
};

}  // namespace penstock
