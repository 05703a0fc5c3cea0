#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <utility>
#include <vector>

#include "base/status.h"
#include "model/sampler/drawn_token.h"
#include "model/sampler/logprobs.h"
#include "model/sampler/token_constraint.h"

namespace penstock {

// The sampling parameters of a request. ValidateSampling checks their limits.
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
  std::vector<uint32_t> stop_token_ids = {};  // not sampled before min_tokens tokens
  int32_t min_tokens = 0;
  int32_t top_logprobs = 0;  // 0..20
  // Null: any token may come. Shared by the choices of a request.
  std::shared_ptr<const ConstraintSource> constraint = nullptr;
};

// Returns INVALID_ARGUMENT that names the first field out of range and its limits: temperature
// 0..2, top_p (0, 1], top_k 0..2^31-1, min_p [0, 1), frequency and presence penalty -2..2,
// repetition penalty 0.01..10, at most 1,024 entries each of logit_bias (-100..100) and
// stop_token_ids, all with ids below `vocab`, min_tokens 0..2^20, top_logprobs 0..20.
absl::Status ValidateSampling(const SamplingParams& params, int32_t vocab);

// The result of sampling one token.
struct SampledToken {
  uint32_t id = 0;
  float logprob = 0.0f;  // natural log under the model's own distribution, before any parameter
  std::vector<TokenLogprob> top;  // params.top_logprobs entries, best first
};

// A next token of a beam, and its score: its log-probability with biases and penalties.
struct RankedToken {
  uint32_t id = 0;
  float score = 0.0f;
  float logprob = 0.0f;  // as SampledToken has it
};
struct RankedTokens {
  std::vector<RankedToken> best;  // by score, which is finite; equal ones by ascending id
  std::vector<TokenLogprob> top;  // as SampledToken has it
};

// The sampling state of one choice of one request: the counts for the penalties and the output
// position. Owned by the request; one thread at a time.
//
// Steps are applied in this order: logit_bias, repetition penalty (Keskar et al., arXiv 1909.05858;
// prompt and output), frequency and presence penalty (as OpenAI's API defines them; output), the
// constraint, stop tokens before min_tokens (unless nothing else may come), temperature, top-k,
// top-p of the remaining tokens, min-p. Equal logits rank by ascending id. Every step is exact or
// consists of IEEE basic operations, so the token is the same on every machine. NaN counts as
// -infinity. If no logit is finite, the logprob is NaN, and the caller should end the request with
// Failure().
//
// The random draw is Philox4x32-10 with key (seed) and counter (output position, choice): the token
// does not depend on the worker or the batch that samples it.
//
// This room, model/sampler, turns logits into one token. It may use base/ only. It does not know
// models, batches, the tokenizer or devices; kernels/cuda/device/sample.cuh repeats its arithmetic.
class Sampler {
 public:
  // `prompt` counts for the repetition penalty only.
  Sampler(SamplingParams params, uint32_t choice, std::span<const uint32_t> prompt);

  // Records a token that was sampled elsewhere (by the prefill worker, or before a failover). A
  // constraint goes on as it would have there.
  void Observe(uint32_t token);
  // Samples the next token from `logits` [vocab], which it may overwrite, and records it.
  SampledToken Sample(std::span<float> logits);

  // Ranks the next tokens instead of drawing one: biases, penalties and the bar on stop tokens
  // apply to their log-probabilities, as in transformers' beam search; temperature, top-k, top-p
  // and min-p do not. Without a constraint. Returns at most `count`. Overwrites the logits and
  // records nothing. INTERNAL if no logit is finite.
  absl::StatusOr<RankedTokens> Rank(std::span<float> logits, size_t count);

  // Returns the parameters of the next draw (one entry) if a device that holds the logits can make
  // it: no parameter or constraint changes the logits first, and nothing but the drawn token is
  // needed. Returns none if Sample must see the logits. `ahead`: tokens that come before that draw.
  std::vector<DrawSpec> OwnDraws(int32_t ahead = 0) const;
  // Returns the parameters of the draw behind `ahead` further tokens, without what changes the
  // logits before it: for guesses of that token from other logits.
  DrawSpec GuessDraw(int32_t ahead) const { return DrawAt(output_tokens_ + ahead); }
  // Records the token that was drawn with OwnDraws() and returns what Sample returns for the same
  // logits.
  SampledToken Take(const DrawnToken& drawn);

  // The reason of the NaN that Sample has returned.
  const absl::Status& failure() const { return failure_; }

  int32_t output_tokens() const { return output_tokens_; }

  // Another sampler in the same state. Without a constraint.
  Sampler Fork() const;

 private:
  // Stores a new logit; notes its raw value first.
  void Change(std::span<float> logits, uint32_t id, float value);
  void Adjust(std::span<float> logits);  // all steps before the constraint
  absl::Status Constrain(std::span<float> logits);
  void BarStops(std::span<float> logits);
  SampledToken Fail(absl::Status status);
  void PenalizeRepetition(std::span<float> logits);
  float RawLogit(std::span<const float> logits, uint32_t id) const;
  DrawSpec DrawAt(int32_t position) const;  // of the answer

  SamplingParams params_;
  uint32_t choice_;
  int32_t output_tokens_ = 0;
  std::vector<uint32_t> prompt_ids_;                         // sorted, unique
  std::vector<std::pair<uint32_t, int32_t>> output_counts_;  // sorted by id
  std::vector<std::pair<uint32_t, float>> changed_;          // scratch of Sample
  std::unique_ptr<TokenConstraint> constraint_;              // null: none
  absl::Status failure_;
};

}  // namespace penstock
