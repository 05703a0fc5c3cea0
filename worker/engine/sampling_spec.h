#pragma once

#include <span>

#include "base/clock.h"
#include "model/sampler/sampler.h"
#include "proto/worker.pb.h"
#include "worker/engine/step_outputs.h"

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

// Of which choices the first tokens are wanted, and behind what.
struct FirstTokensArgs {
  const SamplingParams& sampling;
  const StopRule& stop;
  std::span<const uint32_t> tokens;  // the prompt, then what was already answered
  size_t prompt_tokens = 0;
  uint32_t first_choice = 0;
  uint32_t choices = 1;
};
// How the prompt was computed.
struct PromptRun {
  TimePoint arrival;
  TimePoint begun;
  TimePoint end;
  int32_t cached = 0;  // leading tokens whose KV was there
};
// The draws of those tokens, one a choice; empty where they need the logits.
std::vector<DrawSpec> FirstDraws(const FirstTokensArgs& args);
// One token a choice, from what a step gave for the last of `tokens`, and what the router hears
// with them. INTERNAL where the logits are not finite.
absl::StatusOr<v1::FirstTokens> MakeFirstTokens(const FirstTokensArgs& args, const PromptRun& run,
                                                const StepOutput& output);

}  // namespace penstock
