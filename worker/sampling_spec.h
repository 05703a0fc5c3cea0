#pragma once

#include <span>

#include "model/sampler.h"
#include "proto/worker.pb.h"

namespace penstock {

// What the router asked for, in the sampler's terms. INVALID_ARGUMENT names the field.
absl::StatusOr<SamplingParams> ToSamplingParams(const v1::SamplingSpec& spec, int32_t vocab);

// A choice's sampler, which has seen the answer so far: the tokens after the first `prompt_tokens`.
Sampler MakeSampler(const SamplingParams& params, uint32_t choice, std::span<const uint32_t> tokens,
                    size_t prompt_tokens);

// When an answer ends.
struct StopRule {
  std::vector<uint32_t> stop_token_ids;
  int32_t tokens_max = 0;  // of the answer: the request's or the context's limit, the smaller
};

// `room` is how many answer tokens the model's context has left behind the prompt.
StopRule MakeStopRule(const v1::SamplingSpec& spec, int32_t room);

// `sampled` as the `position`-th token of the answer (0 is the first), with how it ends the answer.
v1::TokenOut MakeTokenOut(const SampledToken& sampled, uint32_t choice, int32_t position,
                          const StopRule& stop);

// What a request ends with when a sampled token's logprob is NaN: no logit was finite.
absl::Status LogitsNotFinite();

}  // namespace penstock
