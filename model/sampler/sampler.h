#pragma once

#include <cstdint>
#include <span>
#include <utility>
#include <vector>

#include "base/status.h"
#include "model/sampler/drawn_token.h"

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
  std::vector<std::pair<uint32_t, float>> logit_bias = {};
  std::vector<uint32_t> stop_token_ids = {};  // not sampled before min_tokens
  int32_t min_tokens = 0;
  int32_t top_logprobs = 0;  // 0..20
};

// INVALID_ARGUMENT names the first field out of range and its limits: temperature 0..2, top_p
// (0, 1], top_k 0..2^31-1, min_p [0, 1), frequency and presence penalty -2..2, repetition penalty
// 0.01..10, at most 1,024 logit_bias of -100..100 and stop_token_ids, all of ids below `vocab`,
// min_tokens 0..2^20, top_logprobs 0..20.
absl::Status ValidateSampling(const SamplingParams& params, int32_t vocab);

struct TokenLogprob {
  uint32_t id = 0;
  float logprob = 0.0f;
};

struct SampledToken {
  uint32_t id = 0;
  float logprob = 0.0f;           // natural log, of the model's own distribution (before all knobs)
  std::vector<TokenLogprob> top;  // params.top_logprobs entries, best first
};

// Order of the knobs: logit_bias, repetition penalty (Keskar et al. 2019: prompt and output),
// frequency and presence penalty (OpenAI's: output), stop tokens before min_tokens, temperature,
// top-k, top-p of what is left, min-p. Equal logits rank by ascending id. Every step is exact or
// made of IEEE basic operations, so the token is the same on every machine. NaN counts as
// -infinity; where no logit is finite the logprob is NaN and the caller should end the request.
//
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

  // The next token's draw, one, where whoever has the logits can make it: nothing else is wanted of
  // them, and no knob changes them first. None where Sample needs them.
  std::vector<DrawSpec> OwnDraws() const;
  // What Sample gives of the logits that `drawn` was drawn from as OwnDraws() says; observes it.
  SampledToken Take(const DrawnToken& drawn);

  int32_t output_tokens() const { return output_tokens_; }

 private:
  // Before a logit changes, its raw value is noted.
  void Change(std::span<float> logits, uint32_t id, float value);
  void Adjust(std::span<float> logits);  // everything before the temperature
  void PenalizeRepetition(std::span<float> logits);
  float RawLogit(std::span<const float> logits, uint32_t id) const;
  DrawSpec NextDraw() const;

  SamplingParams params_;
  uint32_t choice_;
  int32_t output_tokens_ = 0;
  std::vector<uint32_t> prompt_ids_;                         // sorted, unique
  std::vector<std::pair<uint32_t, int32_t>> output_counts_;  // sorted by id
  std::vector<std::pair<uint32_t, float>> changed_;          // scratch of Sample
};

}  // namespace penstock
