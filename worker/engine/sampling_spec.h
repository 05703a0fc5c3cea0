#pragma once

#include <span>

#include "base/clock.h"
#include "model/sampler/sampler.h"
#include "proto/worker.pb.h"
#include "worker/engine/step_outputs.h"

namespace penstock {

// Translates a router's request into sampling parameters. INVALID_ARGUMENT names the field.
absl::StatusOr<SamplingParams> ToSamplingParams(const v1::SamplingSpec& spec, int32_t vocab);

// The first candidates of the request's beam search; 0: it has none. See worker.proto's BeamSpec.
uint32_t BeamCandidates(const v1::SamplingSpec& spec);

// A choice's sampler, which has seen the answer so far: the tokens after the first `prompt_tokens`.
Sampler MakeSampler(const SamplingParams& params, uint32_t choice, std::span<const uint32_t> tokens,
                    size_t prompt_tokens);

// Decides when an answer ends.
struct StopRule {
  std::vector<uint32_t> stop_token_ids;
  int32_t tokens_max = 0;  // of the answer: the smaller of the request's and the context's limit
};

// `room` is how many answer tokens the model's context has left behind the prompt.
StopRule MakeStopRule(const v1::SamplingSpec& spec, int32_t room);

// `sampled` as the `position`-th token of the answer (0 is the first), with how it ends the answer.
v1::TokenOut MakeTokenOut(const SampledToken& sampled, uint32_t choice, int32_t position,
                          const StopRule& stop);

// Log-probabilities in the form that routers get.
v1::Alternative AlternativeOf(const TokenLogprob& token);

// The choices whose first tokens are wanted, and the tokens before them.
struct FirstTokensArgs {
  const SamplingParams& sampling;
  const StopRule& stop;
  std::span<const uint32_t> tokens;  // the prompt, then what was already answered
  size_t prompt_tokens = 0;
  uint32_t first_choice = 0;
  uint32_t choices = 1;
  uint32_t candidates = 0;  // of a beam search: so many are wanted instead of `choices`
};
// Times and cached tokens of a prompt's computation, for the report to the router.
struct PromptRun {
  TimePoint arrival;
  TimePoint begun;
  TimePoint end;
  int32_t cached = 0;  // leading tokens whose KV was there
};
// The draws of the first tokens, one for each choice; empty if sampling needs the logits.
std::vector<DrawSpec> FirstDraws(const FirstTokensArgs& args);
// Samples one token for each choice, or ranks the candidates of a beam search, from the output of a
// step that ended with the last of `tokens`, and makes the message to the router. INTERNAL if the
// logits are not finite, or the grammar does not allow what was answered.
absl::StatusOr<v1::FirstTokens> MakeFirstTokens(const FirstTokensArgs& args, const PromptRun& run,
                                                const StepOutput& output);

}  // namespace penstock
